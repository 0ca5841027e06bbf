//! The engine over redb: a copy-on-write B-tree in one file, with page checksums.
//!
//! An immediate commit is made in two phases, with two fsyncs, and records which pages are free: whatever
//! ends the process, the file can be opened without walking through its trees. The syncs are made
//! behind redb's back ([`super::behind`]), so that a commit may go on while the one before is still on its way. The last commit's read
//! transaction is kept and shared by all readers, so that a read costs no bookkeeping in redb; it is
//! replaced after each commit.
//!
//! All pages are checked when a file is opened ([`redb_check`]), but a page that changes under a running
//! process may make redb panic. Such a panic is caught here and reported as corruption.

use super::behind::Behind;
use super::{Batch, Durability, Engine, Snapshot, StorageError, Table, Visit, redb_check};
use parking_lot::{Mutex, RwLock};
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadOnlyTable, ReadableDatabase, StorageBackend, TableDefinition};
use std::fs::{File, OpenOptions};
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

const TABLES: [(Table, Definition); 6] = [
    (Table::Meta, TableDefinition::new("meta")),
    (Table::Rows, TableDefinition::new("rows")),
    (Table::Leases, TableDefinition::new("leases")),
    (Table::Alarms, TableDefinition::new("alarms")),
    (Table::Users, TableDefinition::new("users")),
    (Table::Roles, TableDefinition::new("roles")),
];

/// How long a shrink waits for readers.
const READERS_WAIT: Duration = Duration::from_secs(3);
/// How often a reader that must not wait looks for the latest snapshot.
const SPINS: usize = 32;

/// A store in redb's file format.
pub struct RedbEngine {
    // `None` once closed or poisoned. Readers and the writer share; shrinking is exclusive.
    database: RwLock<Option<Database>>,
    latest: RwLock<Option<Arc<dyn Snapshot>>>,
    poisoned: Mutex<Option<String>>,
    length: Arc<AtomicU64>,
    // Cloned into every snapshot: its count tells how many live.
    living: Arc<()>,
    file: Behind,
    // Writes behind; without it that is done by those who wait for it.
    writer: Mutex<Option<JoinHandle<()>>>,
}

struct RedbSnapshot {
    _living: Arc<()>,
    tables: [ReadOnlyTable<&'static [u8], &'static [u8]>; TABLES.len()],
}

fn failed(error: impl Into<redb::Error>) -> StorageError {
    match error.into() {
        redb::Error::Corrupted(what) => StorageError::Corrupted(what),
        redb::Error::Io(error) => error.into(),
        redb::Error::PreviousIo => StorageError::Closed("an earlier I/O error".into()),
        redb::Error::DatabaseClosed => StorageError::Closed("it has been closed".into()),
        redb::Error::UpgradeRequired(version) => {
            StorageError::Corrupted(format!("file format {version} is not supported"))
        }
        other => StorageError::Io(other.to_string()),
    }
}

/// Runs an engine call; a panic inside redb becomes an error that says so.
fn guarded<T>(call: impl FnOnce() -> Result<T, StorageError>) -> Result<T, StorageError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown failure");
            Err(StorageError::Corrupted(format!("the storage engine stopped: {text}")))
        }
    }
}

impl RedbEngine {
    /// Opens or creates the file at `path`, checking every page's checksum on the way.
    ///
    /// `cache_bytes` bounds the page cache. With `sync` false nothing is ever synced: faster, and a
    /// power cut may lose or destroy everything.
    ///
    /// # Errors
    /// The file can't be opened, is not a store, or is corrupted.
    pub fn open(path: &Path, cache_bytes: usize, sync: bool) -> Result<Self, StorageError> {
        Self::of_file(create(path)?, cache_bytes, sync)
    }

    /// The same of a file that is open, and may have no name any more.
    ///
    /// # Errors
    /// As [`RedbEngine::open`].
    pub fn of_file(file: File, cache_bytes: usize, sync: bool) -> Result<Self, StorageError> {
        let engine = Self::build(FileBackend::new(file).map_err(failed)?, cache_bytes, sync)?;
        let file = engine.file.clone();
        let writer = std::thread::Builder::new().name("store-sync".into());
        let writer = writer.spawn(move || file.work())?;
        *engine.writer.lock() = Some(writer);
        Ok(engine)
    }

    /// An engine that keeps everything in memory, for tests and throw-away servers.
    ///
    /// # Errors
    /// As [`RedbEngine::open`].
    pub fn in_memory() -> Result<Self, StorageError> {
        Self::with_backend(redb::backends::InMemoryBackend::new(), 64 << 20)
    }

    /// An engine over any backend of redb's. Commits that are only begun proceed when someone waits
    /// for them, or with [`RedbEngine::file`].
    ///
    /// # Errors
    /// As [`RedbEngine::open`].
    pub fn with_backend(
        backend: impl StorageBackend,
        cache_bytes: usize,
    ) -> Result<Self, StorageError> {
        Self::build(backend, cache_bytes, true)
    }

    fn build(
        backend: impl StorageBackend,
        cache_bytes: usize,
        sync: bool,
    ) -> Result<Self, StorageError> {
        let length = Arc::new(AtomicU64::new(0));
        let watched = Watched { inner: backend, length: length.clone(), sync };
        let file = Behind::new(Box::new(watched))?;
        let backend = file.clone();
        guarded(|| {
            let whole = redb_check::is_whole(&backend);
            let mut builder = Builder::new();
            builder.set_cache_size(cache_bytes).set_check_integrity_on_open(!whole);
            let database = builder.create_with_backend(backend).map_err(failed)?;
            let living = Arc::new(());
            let transaction = database.begin_read().map_err(failed)?;
            let there = transaction.list_tables().map_err(failed)?.count();
            drop(transaction);
            if there < TABLES.len() {
                let mut transaction = database.begin_write().map_err(failed)?;
                transaction.set_quick_repair(true);
                for (_, definition) in TABLES {
                    transaction.open_table(definition).map_err(failed)?;
                }
                transaction.commit().map_err(failed)?;
            }
            let latest = RedbSnapshot::take(&database, &living)?;
            file.settle()?;
            Ok(Self {
                database: RwLock::new(Some(database)),
                latest: RwLock::new(Some(latest)),
                poisoned: Mutex::new(None),
                length,
                living,
                file,
                writer: Mutex::new(None),
            })
        })
    }

    /// The store's file, whose syncs may be behind.
    pub fn file(&self) -> &Behind {
        &self.file
    }

    fn closed(&self) -> StorageError {
        let why = self.poisoned.lock().clone();
        StorageError::Closed(why.unwrap_or_else(|| "it has been closed".into()))
    }

    fn poison(&self, error: StorageError) -> StorageError {
        self.poisoned.lock().get_or_insert_with(|| error.to_string());
        *self.latest.write() = None;
        error
    }

    fn write(&self, batch: &Batch, durability: Durability) -> Result<(), StorageError> {
        let guard = self.database.read();
        let database = guard.as_ref().ok_or_else(|| self.closed())?;
        let mut transaction = database.begin_write().map_err(failed)?;
        match durability {
            Durability::Immediate | Durability::Begun => transaction.set_quick_repair(true),
            Durability::Deferred => {
                transaction.set_durability(redb::Durability::None).map_err(failed)?;
            }
        }
        for (table, definition) in TABLES {
            let mut changes =
                batch.changes.iter().filter(|change| change.table == table).peekable();
            if changes.peek().is_none() {
                continue;
            }
            let mut open = transaction.open_table(definition).map_err(failed)?;
            for change in changes {
                match &change.value {
                    Some(value) => open.insert(&change.key[..], &value[..]).map_err(failed)?,
                    None => open.remove(&change.key[..]).map_err(failed)?,
                };
            }
        }
        transaction.commit().map_err(failed)?;
        let snapshot = RedbSnapshot::take(database, &self.living)?;
        let before = self.latest.write().replace(snapshot);
        // Not under the lock: readers wait for that.
        drop(before);
        Ok(())
    }
}

impl Engine for RedbEngine {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, StorageError> {
        self.latest.read().clone().ok_or_else(|| self.closed())
    }

    fn snapshot_at_once(&self) -> Result<Option<Arc<dyn Snapshot>>, StorageError> {
        // A commit holds the lock for a moment.
        for _ in 0..SPINS {
            if let Some(latest) = self.latest.try_read() {
                return latest.clone().ok_or_else(|| self.closed()).map(Some);
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }

    fn commit(&self, batch: &Batch, durability: Durability) -> Result<(), StorageError> {
        if self.poisoned.lock().is_some() {
            return Err(self.closed());
        }
        guarded(|| self.write(batch, durability)).map_err(|error| self.poison(error))?;
        if durability == Durability::Immediate { self.settle() } else { Ok(()) }
    }

    fn settle(&self) -> Result<(), StorageError> {
        self.file.settle().map_err(|error| self.poison(error.into()))
    }

    fn file_bytes(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    fn shrink(&self) -> Result<(), StorageError> {
        // The write lock on `latest` keeps new readers out; those that read already hold snapshots,
        // this one or older ones, for the length of one read.
        let mut latest = self.latest.write();
        let mut guard = self.database.write();
        let database = guard.as_mut().ok_or_else(|| self.closed())?;
        if latest.take().is_none() {
            return Err(self.closed());
        }
        let deadline = Instant::now() + READERS_WAIT;
        while Arc::strong_count(&self.living) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        let compacted = guarded(|| match database.compact() {
            Ok(_) => self.file.settle().map_err(StorageError::from),
            Err(redb::CompactionError::TransactionInProgress) => Err(StorageError::Busy),
            Err(error) => Err(failed(error)),
        });
        let snapshot = guarded(|| RedbSnapshot::take(database, &self.living));
        match (compacted, snapshot) {
            (compacted @ (Ok(()) | Err(StorageError::Busy)), Ok(snapshot)) => {
                *latest = Some(snapshot);
                compacted
            }
            (Err(error), _) | (_, Err(error)) => {
                self.poisoned.lock().get_or_insert_with(|| error.to_string());
                Err(error)
            }
        }
    }

    fn close(&self) {
        *self.latest.write() = None;
        let database = self.database.write().take();
        // Dropping writes redb's allocator state, so that the next start needs no repair.
        let _ = guarded(|| {
            drop(database);
            Ok(())
        });
        self.file.stop();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

impl Drop for RedbEngine {
    fn drop(&mut self) {
        self.close();
    }
}

impl RedbSnapshot {
    fn take(database: &Database, living: &Arc<()>) -> Result<Arc<dyn Snapshot>, StorageError> {
        let transaction = database.begin_read().map_err(failed)?;
        let open = |(_, definition): (Table, Definition)| transaction.open_table(definition);
        let [meta, rows, leases, alarms, users, roles] = TABLES.map(open);
        Ok(Arc::new(Self {
            _living: living.clone(),
            tables: [
                meta.map_err(failed)?,
                rows.map_err(failed)?,
                leases.map_err(failed)?,
                alarms.map_err(failed)?,
                users.map_err(failed)?,
                roles.map_err(failed)?,
            ],
        }))
    }
}

impl Snapshot for RedbSnapshot {
    fn get(
        &self,
        table: Table,
        key: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, StorageError> {
        guarded(|| {
            let Some(value) = self.tables[table as usize].get(key).map_err(failed)? else {
                return Ok(false);
            };
            visit(value.value());
            Ok(true)
        })
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<(), StorageError> {
        guarded(|| {
            let end = to.map_or(Bound::Unbounded, Bound::Excluded);
            let bounds = (Bound::Included(from), end);
            if to.is_some_and(|to| to <= from) {
                return Ok(());
            }
            for row in self.tables[table as usize].range::<&[u8]>(bounds).map_err(failed)? {
                let (key, value) = row.map_err(failed)?;
                if let ControlFlow::Break(()) = visit(key.value(), value.value()) {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Opens or creates a file for this process alone. With `sync` false it is never synced.
///
/// # Errors
/// The file can't be opened, or another process has it.
pub fn open_file(path: &Path, sync: bool) -> Result<Box<dyn StorageBackend>, StorageError> {
    let inner = FileBackend::new(create(path)?).map_err(failed)?;
    Ok(Box::new(Watched { inner, length: Arc::default(), sync }))
}

fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        // Whatever the directory allows: it holds hashes of passwords, and the key that signs tokens.
        .mode(0o600)
        .open(path)
}

/// A backend whose length is known without asking it, and whose syncs can be left out.
#[derive(Debug)]
struct Watched<B> {
    inner: B,
    length: Arc<AtomicU64>,
    sync: bool,
}

impl<B: StorageBackend> StorageBackend for Watched<B> {
    fn len(&self) -> Result<u64, std::io::Error> {
        let length = self.inner.len()?;
        self.length.store(length, Ordering::Relaxed);
        Ok(length)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.inner.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.inner.set_len(len)?;
        self.length.store(len, Ordering::Relaxed);
        Ok(())
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        if self.sync { self.inner.sync_data() } else { Ok(()) }
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.inner.write(offset, data)
    }
    fn close(&self) -> Result<(), std::io::Error> {
        self.inner.close()
    }
}
