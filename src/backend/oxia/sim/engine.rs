//! An engine that is nothing but a map: what a gateway keeps is a cache, and the simulation makes
//! thousands of them.

use crate::storage::{Batch, Durability, Engine, Snapshot, StorageError, Table, Visit};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type Rows = BTreeMap<(Table, Bytes), Bytes>;

/// Keeps everything in memory.
#[derive(Default)]
pub struct MapEngine {
    rows: Mutex<Arc<Rows>>,
}

struct MapSnapshot(Arc<Rows>);

impl Snapshot for MapSnapshot {
    fn get(
        &self,
        table: Table,
        key: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, StorageError> {
        let value = self.0.get(&(table, Bytes::copy_from_slice(key)));
        if let Some(value) = value {
            visit(value);
        }
        Ok(value.is_some())
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<(), StorageError> {
        let from = Bound::Included((table, Bytes::copy_from_slice(from)));
        for ((of, key), value) in self.0.range((from, Bound::Unbounded)) {
            if *of != table || to.is_some_and(|to| key[..] >= *to) || visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Engine for MapEngine {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, StorageError> {
        Ok(Arc::new(MapSnapshot(self.rows.lock().clone())))
    }

    fn commit(&self, batch: &Batch, _: Durability) -> Result<(), StorageError> {
        let mut rows = self.rows.lock();
        let rows = Arc::make_mut(&mut rows);
        for change in &batch.changes {
            let key = (change.table, change.key.clone());
            match &change.value {
                Some(value) => rows.insert(key, value.clone()),
                None => rows.remove(&key),
            };
        }
        Ok(())
    }

    fn file_bytes(&self) -> u64 {
        0
    }

    fn shrink(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn settle(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn close(&self) {}
}
