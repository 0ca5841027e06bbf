//! The keyspace on an Oxia cluster that is filled: it begins with a checkpoint of what was imported, and with
//! a log whose only entry founds it.

use super::progress::Progress;
use super::temporary;
use crate::backend::oxia::checkpoint::begin::{BeginError, POSITION, founding};
use crate::backend::oxia::checkpoint::write::Writer;
use crate::backend::oxia::client::{Client, Kind};
use crate::backend::oxia::cluster::ClusterShard;
use crate::backend::oxia::names::Names;
use crate::backend::oxia::shard::Shard;
use crate::config::backend::OxiaPlace;
use crate::keyspace::gateways::{Founded, Gateways};
use crate::node::oxia::client_config;
use crate::storage::redb_engine::RedbEngine;
use crate::storage::tables::meta;
use crate::storage::{Batch, Durability, Engine, StorageError};
use leaseway_proto::log::{Entry, Found};
use parking_lot::Mutex;
use prost::Message;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

const CACHE_BYTES: usize = 64 << 20;
/// How long the cluster may take to answer at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// After how long a person is told of that.
const SLOW: Duration = Duration::from_secs(2);

/// An empty keyspace, connected to.
pub struct Keyspace {
    name: String,
    names: Names,
    shard: ClusterShard,
}

impl Keyspace {
    /// Connects, and looks whether it is empty, so that nobody waits for an import that will be refused.
    ///
    /// # Errors
    /// Why it can't be filled, in one line.
    pub fn open(place: &OxiaPlace, runtime: &Runtime) -> Result<Self, String> {
        let names = Names::new(&place.keyspace);
        let name = place.keyspace.clone();
        runtime.block_on(async {
            let failed = |error: crate::backend::oxia::client::Error| match error.kind {
                Kind::Invalid => format!("--backend: {error}"),
                _ => format!("cannot reach the cluster: {error}"),
            };
            let config = client_config(place, &names)?;
            let client = told_if_slow(Client::connect(config, PATIENCE)).await.map_err(failed)?;
            let shard = ClusterShard::new(Arc::new(client), &names);
            let tip =
                shard.proven_tip().await.map_err(|error| format!("keyspace {name}: {error}"))?;
            match tip.position {
                0 => Ok(Self { name, names, shard }),
                _ => Err(format!("keyspace {name}: {}", BeginError::NotEmpty)),
            }
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fills a store in a file without a name in `scratch`, and begins the keyspace with it. `fill` returns, besides
    /// what is returned here, about how many bytes there are.
    ///
    /// # Errors
    /// Why not, in one line; those of `fill`. The keyspace is as it was then, unless the error says otherwise.
    pub fn fill<T>(
        self,
        scratch: &Path,
        runtime: &Runtime,
        progress: &mut Progress,
        fill: impl FnOnce(&Arc<dyn Engine>, &mut Progress) -> Result<(T, u64), String>,
    ) -> Result<T, String> {
        let stored = |error: StorageError| error.to_string();
        let file = temporary::file(scratch)
            .map_err(|error| format!("cannot write in {}: {error}", scratch.display()))?;
        let engine: Arc<dyn Engine> =
            Arc::new(RedbEngine::of_file(file, CACHE_BYTES, false).map_err(stored)?);
        let (made, bytes) = fill(&engine, progress)?;
        let (entry, found) = founding();
        let mut batch = Batch::default();
        meta::put_gateways(&mut batch, &gateways_after(&entry, &found)?.encode());
        engine.commit(&batch, Durability::Immediate).map_err(stored)?;
        progress.begin("sending", bytes);
        let begun = {
            let progress = Mutex::new(&mut *progress);
            let snapshot = engine.snapshot().map_err(stored)?;
            let writer = Writer { shard: &self.shard, names: &self.names, applied: &|| POSITION };
            let told = |bytes| progress.lock().reached(bytes);
            runtime.block_on(writer.begin(&*snapshot, &entry, &told))
        };
        progress.end();
        engine.close();
        begun.map(|()| made).map_err(|why| format!("keyspace {}: {why}", self.name))
    }
}

/// Tells a person who waits that there is no answer yet.
async fn told_if_slow<T>(connecting: impl Future<Output = T>) -> T {
    let mut connecting = std::pin::pin!(connecting);
    if let Ok(done) = tokio::time::timeout(SLOW, &mut connecting).await {
        return done;
    }
    let most = PATIENCE.as_secs();
    eprintln!(
        "leaseway: no answer from the Oxia cluster about its namespace yet, for {most} s at most"
    );
    connecting.await
}

/// Who may append after the entry that founds the keyspace: nobody yet.
fn gateways_after(entry: &Entry, found: &Found) -> Result<Gateways, String> {
    let incarnation = found.incarnation[..].try_into();
    let incarnation = incarnation.map_err(|_| "an incarnation has 16 bytes".to_owned())?;
    let founded = Some(Founded { incarnation, cluster_id: found.cluster_id });
    let log_bytes = entry.encoded_len() as u64;
    Ok(Gateways { founded, log_bytes, ..Gateways::default() })
}
