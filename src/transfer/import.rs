//! In: etcd's database file into an empty store.
//!
//! Rows keep their revisions and everything about them; what is no row is checked before it is believed,
//! because the keyspace relies on what is in its store.

use super::bolt::{BoltError, Bucket, Database, ReadAt, Visit};
use super::progress::Progress;
use super::schema::{self, Lease, TTL_MAX};
use crate::auth::tokens::simple::KEY_BYTES;
use crate::storage::tables::rows::RowId;
use crate::storage::tables::{alarms, leases, meta, roles, rows, users};
use crate::storage::{Batch, Durability, Engine, StorageError, Table};
use bytes::Bytes;
use leaseway_proto::authpb::{Role, User};
use leaseway_proto::etcdserverpb::{AlarmMember, AlarmType};
use leaseway_proto::mvccpb::KeyValue;
use prost::Message;

/// Bytes of rows that are committed at a time.
const BATCH_BYTES: usize = 8 << 20;
/// Revisions end here, so that there are always more.
const REVISION_MAX: i64 = i64::MAX / 2;

/// Why a file is not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file can't be read as a database file.
    #[error(transparent)]
    Bolt(#[from] BoltError),
    /// What is in it is not etcd's.
    #[error("the file is damaged: {0}")]
    Content(String),
    /// The store failed.
    #[error("cannot write the store: {0}")]
    Storage(#[from] StorageError),
}

/// What is known of a file before its rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    consistent_index: u64,
    scheduled: i64,
    finished: i64,
}

/// How it is imported.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Revisions to leave out behind the last one. All up to the new revision are compacted then.
    pub bump: Option<i64>,
    /// The log's position that the keyspace is as of.
    pub position: u64,
    /// Whether each lease gets a session of its own, as the embedded server has it. If not, its time
    /// is kept by whoever applies the log.
    pub sessions: bool,
}

/// What was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows: changes of keys.
    pub rows: u64,
    /// Bytes of these, as they are stored.
    pub bytes: u64,
    /// Leases.
    pub leases: usize,
    /// Users.
    pub users: usize,
    /// Roles.
    pub roles: usize,
    /// Current revision.
    pub revision: i64,
    /// Compacted revision; below 1 if there was no compaction.
    pub compacted: i64,
}

/// A database file, about to be imported.
pub struct Import<R> {
    database: Database<R>,
    buckets: Vec<Bucket>,
    head: Head,
}

fn content(what: impl Into<String>) -> ImportError {
    ImportError::Content(what.into())
}

impl<R: ReadAt> Import<R> {
    /// Looks what is in a file.
    ///
    /// # Errors
    /// It is damaged, or not etcd's.
    pub fn new(mut database: Database<R>) -> Result<Self, ImportError> {
        let buckets = database.buckets()?;
        let mut import = Self { database, buckets, head: Head::default() };
        for needed in [schema::KEY, schema::META] {
            if !import.buckets.iter().any(|bucket| bucket.name == needed.as_bytes()) {
                return Err(content(format!("it has no bucket {needed:?}")));
            }
        }
        import.head = import.read_head()?;
        Ok(import)
    }

    /// Raft's index of the last command in the file.
    pub fn consistent_index(&self) -> u64 {
        self.head.consistent_index
    }

    /// Visits a bucket, if it is there.
    fn scan(&mut self, name: &str, visit: Visit<'_, ImportError>) -> Result<(), ImportError> {
        match self.buckets.iter().find(|bucket| bucket.name == name.as_bytes()) {
            Some(bucket) => self.database.scan(bucket, visit),
            None => Ok(()),
        }
    }

    fn read_head(&mut self) -> Result<Head, ImportError> {
        let mut head = Head::default();
        self.scan(schema::META, &mut |key, value| {
            let revision = || {
                let (row, _) = schema::parse_row_key(value)
                    .ok_or_else(|| content("a compacted revision is none"))?;
                Ok::<_, ImportError>(row.main)
            };
            match key {
                schema::CONSISTENT_INDEX => {
                    head.consistent_index = schema::number(value)
                        .ok_or_else(|| content("its consistent index is no number"))?;
                }
                schema::SCHEDULED_COMPACTION => head.scheduled = revision()?,
                schema::FINISHED_COMPACTION => head.finished = revision()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(head)
    }

    /// Fills an empty store. It counts for nothing unless this succeeds, and holds no identity yet.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn fill(
        mut self,
        engine: &dyn Engine,
        settings: Settings,
        progress: &mut Progress,
    ) -> Result<Summary, ImportError> {
        let mut summary = Summary::default();
        let mut batch = Batch::default();
        self.read_leases(&mut batch, settings.sessions, &mut summary)?;
        self.read_alarms(&mut batch)?;
        self.read_auth(&mut batch, &mut summary)?;
        engine.commit(&batch, Durability::Deferred)?;
        let last = self.read_rows(engine, &mut summary, progress)?;
        let compacted = self.head.scheduled.max(self.head.finished);
        let mut state = meta::State {
            revision: last.max(compacted).max(1),
            compacted: if compacted > 0 { compacted } else { -1 },
            compaction_finished: if self.head.finished > 0 { self.head.finished } else { -1 },
            position: settings.position,
        };
        if let Some(bump) = settings.bump {
            state.revision = state.revision.saturating_add(bump);
            state.compacted = state.revision;
        }
        if state.revision > REVISION_MAX {
            return Err(content(format!("revision {} is too high", state.revision)));
        }
        (summary.revision, summary.compacted) = (state.revision, state.compacted);
        let mut batch = Batch::default();
        meta::put_state(&mut batch, &state);
        engine.commit(&batch, Durability::Immediate)?;
        Ok(summary)
    }

    /// Copies the rows; returns the last revision.
    fn read_rows(
        &mut self,
        engine: &dyn Engine,
        summary: &mut Summary,
        progress: &mut Progress,
    ) -> Result<i64, ImportError> {
        let mut batch = Batch::default();
        let (mut last, mut pending, mut done) = (0, 0, 0);
        progress.begin("importing", self.database.bytes());
        self.scan(schema::KEY, &mut |key, value| {
            let (row, tombstone) = schema::parse_row_key(key)
                .ok_or_else(|| content(format!("{key:02x?} is no revision")))?;
            last = row.main;
            let Some(encoded) = read_row(row, tombstone, value)? else { return Ok(()) };
            pending += encoded.len();
            summary.bytes += encoded.len() as u64;
            batch.put(Table::Rows, rows::key(row).to_vec(), encoded);
            summary.rows += 1;
            if pending >= BATCH_BYTES {
                engine.commit(&std::mem::take(&mut batch), Durability::Deferred)?;
                done += std::mem::take(&mut pending) as u64;
                progress.reached(done);
            }
            Ok(())
        })?;
        engine.commit(&batch, Durability::Deferred)?;
        progress.end();
        Ok(last)
    }

    fn read_leases(
        &mut self,
        batch: &mut Batch,
        sessions: bool,
        summary: &mut Summary,
    ) -> Result<(), ImportError> {
        self.scan(schema::LEASE, &mut |key, value| {
            let lease = Lease::decode(value).map_err(|_| content("a lease is none"))?;
            let Lease { id, ttl, remaining } = lease;
            if id == 0 || key != id.to_be_bytes() {
                return Err(content("a lease does not stand where its id says"));
            }
            if !(1..=TTL_MAX).contains(&ttl) {
                return Err(content(format!("lease {id:x} has an impossible TTL of {ttl} s")));
            }
            let session = if sessions { rand::random_range(1..=u64::MAX) } else { 0 };
            let remaining = remaining.clamp(0, ttl);
            let (spared, marker) = (false, String::new());
            let row = leases::Row { id, ttl, session, renewals: 0, remaining, spared, marker };
            leases::put(batch, &row);
            summary.leases += 1;
            Ok(())
        })
    }

    fn read_alarms(&mut self, batch: &mut Batch) -> Result<(), ImportError> {
        self.scan(schema::ALARM, &mut |key, _| {
            let alarm = AlarmMember::decode(key).map_err(|_| content("an alarm is none"))?;
            match AlarmType::try_from(alarm.alarm) {
                Ok(AlarmType::None) | Err(_) => Err(content("an alarm is of an unknown kind")),
                Ok(_) => {
                    alarms::put(batch, alarm.member_id, alarm.alarm);
                    Ok(())
                }
            }
        })
    }

    fn read_auth(&mut self, batch: &mut Batch, summary: &mut Summary) -> Result<(), ImportError> {
        let mut auth = meta::Auth::default();
        self.scan(schema::AUTH, &mut |key, value| {
            match key {
                schema::AUTH_ENABLED => auth.enabled = value == [1],
                schema::AUTH_REVISION => {
                    let revision = schema::number(value)
                        .ok_or_else(|| content("the auth revision is no number"))?;
                    auth.revision = revision.max(1);
                }
                _ => {}
            }
            Ok(())
        })?;
        self.scan(schema::AUTH_ROLES, &mut |key, value| {
            let role = Role::decode(value).map_err(|_| content("a role is none"))?;
            roles::put(batch, name_of(key, &role.name)?, &role);
            summary.roles += 1;
            Ok(())
        })?;
        self.scan(schema::AUTH_USERS, &mut |key, value| {
            let user = User::decode(value).map_err(|_| content("a user is none"))?;
            // Tokens that were given elsewhere are good for nothing here.
            users::put(batch, name_of(key, &user.name)?, &user, auth.revision);
            summary.users += 1;
            Ok(())
        })?;
        if auth.enabled {
            auth.token_key = Bytes::from_owner(rand::random::<[u8; KEY_BYTES]>());
        }
        if auth != meta::Auth::default() {
            meta::put_auth(batch, &auth);
        }
        Ok(())
    }
}

/// A user's or a role's name, which stands there twice.
fn name_of<'k>(key: &'k [u8], name: &[u8]) -> Result<&'k str, ImportError> {
    let text = std::str::from_utf8(key).ok().filter(|_| key == name);
    text.ok_or_else(|| content("a user or role does not stand where its name says"))
}

/// A row in our form. Nothing of one without a key: `etcdutl snapshot restore --bump-revision` leaves one
/// such row, for the sake of its revision.
fn read_row(row: RowId, tombstone: bool, value: &[u8]) -> Result<Option<Bytes>, ImportError> {
    let wrong = |what: &str| content(format!("the row at revision {} {what}", row.main));
    if value.is_empty() && !tombstone {
        return Ok(None);
    }
    let kv = KeyValue::decode(value).map_err(|_| wrong("is no key and value"))?;
    if kv.key.is_empty() {
        return Err(wrong("has no key"));
    }
    if tombstone {
        return Ok(Some(rows::encode_delete(row, kv.key)));
    }
    if kv.mod_revision != row.main {
        return Err(wrong("says that it is of another"));
    }
    if !(1..=row.main).contains(&kv.create_revision) || kv.version < 1 {
        return Err(wrong("has an impossible past"));
    }
    Ok(Some(rows::encode_put(row, &kv)))
}
