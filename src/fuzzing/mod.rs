//! Everything that reads bytes of others, as functions of any bytes: none may panic, hang, or read back
//! something else than was written. For tests only.

mod changes;
mod spelled;
mod tests;

use crate::backend::local::wal::{Files, Wal};
use crate::backend::oxia::checkpoint::format::{Unpacker, seal, unseal};
use crate::backend::oxia::names::Names;
use crate::gateway::{json, validate};
use crate::keyspace::gateways::Gateways;
use crate::storage::Batch;
use crate::storage::redb_engine::RedbEngine;
use crate::transfer::bolt::Database;
use crate::transfer::import::{Import, ImportError, Settings};
use crate::transfer::progress::Progress;
use bytes::Bytes;
use leaseway_proto::log::{CheckpointHead, CheckpointManifest, Entry, Member};
use leaseway_proto::schema::{METHODS, Method};
use leaseway_proto::{etcdserverpb as pb, v3electionpb, v3lockpb};
use prost::Message;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use std::collections::BTreeMap;

/// A target's name, which is also that of its corpus, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("json", json),
    ("requests", requests),
    ("snapshot", snapshot),
    ("log", log),
    ("records", records),
    ("config", config),
];

/// Operations of a transaction, as etcd's default has it.
const OPS_MAX: usize = 128;

/// The first byte decides, the others are what it decides about.
fn choice<'d, T>(data: &'d [u8], of: &'static [T]) -> Option<(&'static T, &'d [u8])> {
    let (first, rest) = data.split_first()?;
    Some((of.get(usize::from(*first) % of.len())?, rest))
}

/// JSON for any method: see [`json::check_text`].
pub fn json(data: &[u8]) {
    let Some((method, text)) = choice(data, METHODS) else { return };
    json::check_text(method.request, text);
}

/// A request in its wire encoding: decoded, checked as the services do, and through JSON and back.
pub fn requests(data: &[u8]) {
    let Some((method, bytes)) = choice(data, METHODS) else { return };
    match method.name {
        "Range" | "RangeStream" => decoded::<pb::RangeRequest>(method, bytes, |request| {
            let _ = (validate::range(request), validate::range_stream(request));
        }),
        "Put" => decoded::<pb::PutRequest>(method, bytes, |request| {
            let _ = (validate::put(request), validate::put_cost(request));
        }),
        "DeleteRange" => decoded::<pb::DeleteRangeRequest>(method, bytes, |request| {
            let _ = validate::delete(request);
        }),
        "Txn" => decoded::<pb::TxnRequest>(method, bytes, |request| {
            let accepted = validate::txn(request, OPS_MAX);
            let _ = validate::txn_cost(request);
            if accepted.is_ok() {
                // Whatever is accepted has to be readable in the log, where it lies deeper.
                let op = leaseway_proto::log::command::Op::Txn(request.clone());
                let command = leaseway_proto::log::Command { op: Some(op), ..Default::default() };
                let entry = Entry { commands: vec![command], ..Entry::default() };
                assert_eq!(Entry::decode(&entry.encode_to_vec()[..]).as_ref(), Ok(&entry));
            }
        }),
        "Watch" => decoded::<pb::WatchRequest>(method, bytes, |_| {}),
        "Lock" => decoded::<v3lockpb::LockRequest>(method, bytes, |_| {}),
        "Campaign" => decoded::<v3electionpb::CampaignRequest>(method, bytes, |_| {}),
        "RoleGrantPermission" => {
            decoded::<pb::AuthRoleGrantPermissionRequest>(method, bytes, |_| {});
        }
        "MemberAdd" => decoded::<pb::MemberAddRequest>(method, bytes, |_| {}),
        "Alarm" => decoded::<pb::AlarmRequest>(method, bytes, |_| {}),
        _ => json::check_message(method.request, bytes),
    }
}

fn decoded<M: Message + Default + PartialEq + std::fmt::Debug>(
    method: &Method,
    bytes: &[u8],
    check: impl Fn(&M),
) {
    // Any bytes, for the printer; those of a message, for what must come back.
    json::check_message(method.request, bytes);
    let Ok(request) = M::decode(bytes) else { return };
    check(&request);
    let encoded = request.encode_to_vec();
    json::check_message(method.request, &encoded);
    assert_eq!(M::decode(&encoded[..]).as_ref(), Ok(&request));
}

/// A database file of etcd's, read and imported. The checksum at its front is made right first, else nothing
/// would be read of what was changed.
pub fn snapshot(data: &[u8]) {
    let mut file = data.to_vec();
    crate::transfer::bolt::reseal(&mut file);
    let Ok(mut database) = Database::open(file.clone()) else { return };
    if let Ok(buckets) = database.buckets() {
        for bucket in &buckets {
            let mut last = Vec::new();
            let _ = database.scan::<ImportError>(bucket, &mut |key, _| {
                assert!(last.is_empty() || last[..] < *key, "keys out of order were handed out");
                last = key.to_vec();
                Ok(())
            });
        }
    }
    let Ok(database) = Database::open(file) else { return };
    let (Ok(import), Ok(engine)) = (Import::new(database), RedbEngine::in_memory()) else { return };
    let settings = Settings { bump: None, position: 1, sessions: true };
    if let Ok(summary) = import.fill(&engine, settings, &mut Progress::new()) {
        assert!(summary.revision >= 1 && summary.compacted <= summary.revision.max(0));
    }
}

/// The log files of an embedded server: as records with right checksums if the first byte is even,
/// else as they are. The second byte is the position that the store is at.
pub fn log(data: &[u8]) {
    const SECRET: [u8; 16] = *b"0123456789abcdef";
    const CAPACITY: usize = 4096;
    let [sealed, position, data @ ..] = data else { return };
    let backends = [InMemoryBackend::new(), InMemoryBackend::new()].map(std::sync::Arc::new);
    let files = || -> Files { backends.clone().map(|backend| Box::new(Shared(backend)) as _) };
    let Ok(mut wal) = Wal::create(files(), SECRET, CAPACITY) else { return };
    if sealed % 2 == 0 {
        for (number, piece) in data.split(|byte| *byte == 0xfe).enumerate() {
            // Whatever is a group may have any position; what is none is written as it is below.
            if let Ok(mut entry) = Entry::decode(piece) {
                entry.last_number = entry.last_number % 8 + number as u64;
                if !wal.fits(entry.encoded_len()) {
                    wal.turn();
                }
                if wal.append(&entry).is_err() {
                    return;
                }
            }
        }
    } else {
        let (first, second) = data.split_at(data.len() / 2);
        for (backend, bytes) in backends.iter().zip([first, second]) {
            // Behind the header, with the secret where a record begins.
            let bytes: Vec<u8> = bytes.iter().copied().take(CAPACITY - 64 - 16).collect();
            let _ = backend.write(64, &SECRET).and_then(|()| backend.write(80, &bytes));
        }
    }
    let position = u64::from(*position) % 8;
    if let Ok((_, groups)) = Wal::open(files(), SECRET, position) {
        for (at, group) in groups.iter().enumerate() {
            assert_eq!(group.position, position + 1 + at as u64, "a gap between groups");
        }
    }
}

/// A backend that is used from two places.
#[derive(Debug)]
struct Shared(std::sync::Arc<InMemoryBackend>);

impl StorageBackend for Shared {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Records of a keyspace in an Oxia cluster: entries, the pieces of checkpoints, names.
pub fn records(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => {
            // Entries one after the other, as a gateway meets them.
            let mut gateways = Gateways::default();
            for piece in data.split(|byte| *byte == 0xfe) {
                if let Ok(entry) = Entry::decode(piece) {
                    let _ = gateways.admit(&entry);
                }
            }
            let stored = gateways.encode();
            let again = Gateways::decode(&stored).map(|gateways| gateways.encode());
            assert_eq!(again, Some(stored));
        }
        1 => {
            if let Some(gateways) = Gateways::decode(data) {
                let stored = gateways.encode();
                assert_eq!(Gateways::decode(&stored).map(|read| read.encode()), Some(stored));
            }
        }
        2 => {
            let value = Bytes::copy_from_slice(data);
            let _ = unseal::<CheckpointHead>(value.clone());
            let _ = unseal::<CheckpointManifest>(value.clone());
            let _ = unseal::<Member>(value);
            if let Ok(manifest) = CheckpointManifest::decode(data) {
                assert_eq!(unseal::<CheckpointManifest>(seal(&manifest)), Ok(manifest));
            }
        }
        3 => {
            let (mut unpacker, mut batch) = (Unpacker::default(), Batch::default());
            for (number, piece) in data.chunks(64).enumerate() {
                let mut segment = (number as u32).to_le_bytes().to_vec();
                segment.extend_from_slice(piece);
                let sum = crc32c::crc32c(&segment).to_le_bytes();
                let sealed = [&sum[..], &segment].concat();
                if unpacker.add(sealed.into(), &mut batch).is_err() {
                    return;
                }
            }
            let bytes = |change: &crate::storage::Change| {
                change.key.len() + change.value.as_ref().map_or(0, Bytes::len)
            };
            assert!(batch.changes.iter().map(bytes).sum::<usize>() <= data.len());
            let _ = unpacker.finish();
        }
        _ => {
            let (names, text) = (Names::new("k"), String::from_utf8_lossy(data));
            let _ = (names.gateway_of(&text), names.session_of(&text), names.checkpoint_of(&text));
            let _ = crate::backend::oxia::names::is_keyspace(&text);
            for start in [names.gateways(), names.markers(), names.checkpoints()] {
                let name = format!("{start}{text}");
                if let Some(id) = names.gateway_of(&name) {
                    assert_eq!(names.gateway_of(&names.gateway(id)), Some(id));
                }
                let _ = (names.session_of(&name), names.checkpoint_of(&name));
            }
        }
    }
}

/// The configuration: a file if the first byte is even, else flags, one a line.
pub fn config(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data).into_owned();
    let nothing = BTreeMap::new();
    let _ = if kind % 2 == 0 {
        crate::config::parse(&["--config-file=x".into()], &nothing, |_| Ok(text))
    } else {
        let args: Vec<String> = text.lines().map(str::to_owned).collect();
        crate::config::parse(&args, &nothing, |_| Err(std::io::ErrorKind::NotFound.into()))
    };
}
