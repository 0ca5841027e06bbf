//! Files of real etcds, and files that were changed.

use super::export::{self, Origin};
use super::import::{Import, Settings, Summary};
use super::progress::Progress;
use super::{bolt, schema};
use crate::keyspace::load::load;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::View;
use crate::storage::redb_engine::RedbEngine;
use crate::storage::tables::{leases, meta, roles, users};
use crate::storage::{Engine, Table};
use bolt::Database;
use leaseway_proto::etcdserverpb::RangeRequest;
use proptest::prelude::*;
use prost::Message;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Snapshots of etcds, with their `HashKV`; testdata/make.sh made them.
const FILES: [(&str, &[u8], u32); 3] = [
    ("3.4", include_bytes!("testdata/etcd-3.4.db"), 3_437_288_926),
    ("3.5", include_bytes!("testdata/etcd-3.5.db"), 912_065_417),
    ("3.7", include_bytes!("testdata/etcd-3.7.db"), 4_251_541_961),
];

const SETTINGS: Settings = Settings { bump: None, position: 7, sessions: true };

fn import(file: &[u8], settings: Settings) -> Result<(Arc<RedbEngine>, Summary), String> {
    let engine = Arc::new(RedbEngine::in_memory().unwrap());
    let said = |error: super::import::ImportError| error.to_string();
    let database = Database::open(file.to_vec()).map_err(|error| error.to_string())?;
    let import = Import::new(database).map_err(said)?;
    let summary = import.fill(&*engine, settings, &mut Progress::new()).map_err(said)?;
    Ok((engine, summary))
}

fn reader(engine: &Arc<RedbEngine>) -> Reader {
    let machine = load(&*engine.snapshot().unwrap(), &mut |_| {}).unwrap();
    let view = Arc::new(View::new(machine.published()));
    Reader::new(machine.shared().clone(), engine.clone(), view)
}

/// A table's rows.
fn table(engine: &RedbEngine, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let mut collect = |key: &[u8], value: &[u8]| {
        rows.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    engine.snapshot().unwrap().scan(table, &[], None, &mut collect).unwrap();
    rows
}

#[test]
fn files_of_all_versions_are_imported() {
    for (version, file, hash) in FILES {
        let (engine, summary) = import(file, SETTINGS).unwrap();
        assert!(summary.bytes > 0);
        let summary = Summary { bytes: 0, ..summary };
        let want = Summary {
            rows: 30,
            bytes: 0,
            leases: 2,
            users: 2,
            roles: 1,
            revision: 29,
            compacted: 20,
        };
        assert_eq!(summary, want, "{version}");
        let snapshot = engine.snapshot().unwrap();
        let state = meta::state(&*snapshot).unwrap();
        assert_eq!((state.compaction_finished, state.position), (20, 7), "{version}");
        let auth = meta::auth(&*snapshot).unwrap().unwrap();
        assert!(auth.enabled && auth.revision > 1 && auth.token_key.len() == 32, "{version}");
        let names = users::all(&*snapshot).unwrap();
        assert_eq!(names.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["reader", "root"]);
        let permission = &roles::all(&*snapshot).unwrap()[0].1.key_permission[0];
        assert_eq!((&permission.key[..], &permission.range_end[..]), (&b"key/"[..], &b"key0"[..]));
        let granted = leases::all(&*snapshot).unwrap();
        let mut times: Vec<i64> = granted.iter().map(|lease| lease.ttl).collect();
        times.sort_unstable();
        assert_eq!(times, [5000, 86400], "{version}");
        assert!(granted.iter().all(|lease| lease.session != 0));

        let reader = reader(&engine);
        let found = reader.hash_kv(0).unwrap();
        assert_eq!((found.hash, found.compacted, found.revision), (hash, 20, 29), "{version}");
        let gateway = Some(&crate::keyspace::auth::GATEWAY);
        let count = |key: &str, revision| {
            let request =
                RangeRequest { key: key.to_owned().into(), revision, ..RangeRequest::default() };
            reader.range(&request, gateway).unwrap().count
        };
        let seen = [count("key/2", 22), count("key/2", 23), count("key/2", 29), count("gone", 29)];
        assert_eq!(seen, [1, 0, 1, 0], "{version}");
    }
}

#[test]
fn what_is_exported_is_what_was_imported() {
    for (version, file, _) in FILES {
        let (engine, summary) = import(file, SETTINGS).unwrap();
        let origin = Origin { member_id: 1, storage_version: "3.7.0" };
        let snapshot = engine.snapshot().unwrap();
        let (out, _) = export::write(&*snapshot, origin, Cursor::new(Vec::new())).unwrap();
        let (again, same) = import(out.get_ref(), SETTINGS).unwrap();
        assert_eq!(same, summary, "{version}");
        for kept in [Table::Rows, Table::Roles, Table::Users, Table::Alarms] {
            assert_eq!(table(&again, kept), table(&engine, kept), "{version} {kept:?}");
        }
    }
}

#[test]
fn a_bump_moves_the_revision_on_and_compacts() {
    let settings = Settings { bump: Some(1000), ..SETTINGS };
    let (engine, summary) = import(FILES[2].1, settings).unwrap();
    assert_eq!((summary.revision, summary.compacted), (1029, 1029));
    let state = meta::state(&*engine.snapshot().unwrap()).unwrap();
    assert_eq!((state.revision, state.compacted, state.compaction_finished), (1029, 1029, 20));
}

/// A file with one bucket's content replaced.
fn with(bucket: &str, rows: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut writer = bolt::Writer::new(Cursor::new(Vec::new())).unwrap();
    for name in [schema::ALARM, schema::AUTH_USERS, schema::KEY, schema::LEASE, schema::META] {
        let rows = if name == bucket { rows } else { &[] };
        writer
            .bucket(name, |filling| {
                rows.iter().try_for_each(|(key, value)| filling.put(key, value))
            })
            .unwrap();
    }
    writer.finish().unwrap().0.into_inner()
}

#[test]
fn content_that_is_not_etcds_is_refused() {
    let kv = |create_revision, mod_revision, version| {
        let key = b"k".as_slice().into();
        let kv = leaseway_proto::mvccpb::KeyValue {
            key,
            create_revision,
            mod_revision,
            version,
            ..Default::default()
        };
        kv.encode_to_vec()
    };
    let row = |main| schema::row_key(crate::keyspace::event::RowId { main, sub: 0 }, false);
    let lease = |id: i64, ttl| {
        (id.to_be_bytes().to_vec(), schema::Lease { id, ttl, remaining: 0 }.encode_to_vec())
    };
    let cases = [
        (schema::KEY, (b"nonsense".to_vec(), vec![]), "no revision"),
        (schema::KEY, (row(5), b"\xff".to_vec()), "no key and value"),
        (schema::KEY, (row(5), b"\x20\x01".to_vec()), "has no key"),
        (schema::KEY, (row(5), kv(5, 6, 1)), "of another"),
        (schema::KEY, (row(5), kv(6, 5, 1)), "impossible past"),
        (schema::KEY, (row(5), kv(5, 5, 0)), "impossible past"),
        (schema::KEY, (row(i64::MAX), kv(5, i64::MAX, 1)), "too high"),
        (schema::LEASE, lease(0, 5), "where its id says"),
        (schema::LEASE, lease(3, i64::MAX), "impossible TTL"),
        (schema::LEASE, (vec![1], lease(3, 5).1), "where its id says"),
        (schema::AUTH_USERS, (b"a".to_vec(), b"\x0a\x01b".to_vec()), "where its name says"),
        (schema::ALARM, (b"\x10\x63".to_vec(), vec![]), "unknown kind"),
        (schema::META, (schema::CONSISTENT_INDEX.to_vec(), vec![1]), "no number"),
        (schema::META, (schema::SCHEDULED_COMPACTION.to_vec(), vec![1]), "compacted revision"),
    ];
    for (bucket, row, want) in cases {
        let error = import(&with(bucket, &[row]), SETTINGS).err().unwrap_or_default();
        assert!(error.contains(want), "{want}: {error}");
    }
    assert!(import(&with(schema::KEY, &[(row(5), kv(5, 5, 1))]), SETTINGS).is_ok());
    // What etcdutl leaves of a bump.
    let (_, summary) = import(&with(schema::KEY, &[(row(5), vec![])]), SETTINGS).unwrap();
    assert_eq!((summary.rows, summary.revision), (0, 5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn changed_files_are_never_fatal(
        file in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = FILES[file].1.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok((engine, _)) = import(&bytes, SETTINGS) {
            let _ = load(&*engine.snapshot().unwrap(), &mut |_| {});
        }
    }
}
