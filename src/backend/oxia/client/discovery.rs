//! Who leads the shard, according to everyone.
//!
//! Every node is asked, all the time: each streams the assignments that it knows, and when one is
//! lost, the others have usually told already. A node can be behind (paused, cut off), and nothing in
//! what it says shows that. So nothing is believed here: the nodes' opinions are kept with the order
//! in which they arrived, and whoever needs the leader tries the newest opinion first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leaseway_proto::oxia::{ShardAssignments, ShardAssignmentsRequest};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::address::Address;
use super::error::{Error, Kind};
use super::shard::{self, Assignment};
use super::wire::{Dialect, Dialing, GET_SHARD_ASSIGNMENTS, Wire};

/// Nodes that are listened to, at most: the seeds, and leaders that were heard of.
const NODES_MAX: usize = 64;

/// Between attempts at one node. A new leader must not wait for us longer than it took to elect it.
const RETRY: Duration = Duration::from_millis(100);
/// The same, for a node that has been away for [`PATIENCE`] attempts.
const RETRY_SLOWLY: Duration = Duration::from_millis(500);
const PATIENCE: u32 = 50;

/// What one node said last.
#[derive(Default)]
struct View {
    assignment: Option<Assignment>,
    /// When it said so, counted over all nodes.
    arrived: u64,
    dialect: Option<Dialect>,
    error: Option<Error>,
}

#[derive(Default)]
struct Views {
    nodes: HashMap<Address, View>,
    arrivals: u64,
}

/// The nodes' opinions, and a sign whenever one changes.
pub(super) struct Discovery {
    views: Mutex<Views>,
    changes: watch::Sender<u64>,
    namespace: String,
    partition_key: String,
}

impl Discovery {
    pub(super) fn new(namespace: String, partition_key: String) -> Arc<Discovery> {
        let (changes, _) = watch::channel(0);
        let views = Mutex::new(Views::default());
        Arc::new(Discovery { views, changes, namespace, partition_key })
    }

    /// Counts what was learned.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Where the leader may be, the most likely first, each address once.
    pub(super) fn candidates(&self) -> Vec<Assignment> {
        let views = self.views.lock();
        let mut opinions: Vec<_> = views
            .nodes
            .values()
            .filter_map(|view| Some((view.arrived, view.assignment.clone()?)))
            .collect();
        opinions.sort_by_key(|(arrived, _)| std::cmp::Reverse(*arrived));
        let mut found: Vec<Assignment> = Vec::new();
        for (_, assignment) in opinions {
            if !found.contains(&assignment) {
                found.push(assignment);
            }
        }
        found
    }

    /// The name under which a node was last understood.
    pub(super) fn dialect(&self, address: &Address) -> Option<Dialect> {
        self.views.lock().nodes.get(address).and_then(|view| view.dialect)
    }

    /// Why nobody knows a leader: the error of the node that was heard last.
    pub(super) fn error(&self) -> Option<Error> {
        let views = self.views.lock();
        let failed = views.nodes.values().filter(|view| view.error.is_some());
        failed.max_by_key(|view| view.arrived).and_then(|view| view.error.clone())
    }

    /// Follows the seeds, and every leader that one of them names. Ends only by being dropped.
    pub(super) async fn run(self: Arc<Self>, dialing: Arc<Dialing>, seeds: Vec<Address>) {
        let mut tasks = JoinSet::new();
        let mut changes = self.changes();
        let mut known: Vec<Address> = Vec::new();
        let mut wanted = seeds;
        loop {
            for address in wanted.drain(..) {
                if known.len() < NODES_MAX && !known.contains(&address) {
                    known.push(address.clone());
                    let following = self.clone().follow(dialing.clone(), address);
                    tasks.spawn(dialing.vital.watched("what listens to an Oxia node", following));
                }
            }
            // Its sender is held by this very value.
            if changes.changed().await.is_err() {
                return;
            }
            wanted.extend(self.candidates().into_iter().map(|candidate| candidate.leader));
        }
    }

    /// Listens to one node for ever.
    async fn follow(self: Arc<Self>, dialing: Arc<Dialing>, node: Address) {
        let mut dialect = Dialect::V1;
        let mut failures = 0;
        loop {
            let before = self.views.lock().arrivals;
            let error = self.listen(&dialing, &node, dialect).await;
            let heard =
                self.views.lock().nodes.get(&node).is_some_and(|view| view.arrived > before);
            if error.kind == Kind::Unimplemented {
                // The other name; it's the first question again if that isn't known either.
                dialect = dialect.other();
                if dialect == Dialect::Legacy {
                    continue;
                }
            }
            failures = if heard { 0 } else { failures + 1 };
            if failures < 3 || failures % 100 == 0 {
                tracing::debug!(%node, %error, "an Oxia node doesn't tell the shards' leaders");
            }
            self.learn(&node, |view| view.error = Some(error));
            tokio::time::sleep(if failures > PATIENCE { RETRY_SLOWLY } else { RETRY }).await;
        }
    }

    /// Listens to one node until that ends; says why it did.
    async fn listen(&self, dialing: &Dialing, node: &Address, dialect: Dialect) -> Error {
        let wire = match Wire::connect(dialing, node, dialect).await {
            Ok(wire) => wire,
            Err(error) => return error,
        };
        let request = ShardAssignmentsRequest { namespace: self.namespace.clone() };
        // A node that knows the assignments sends them at once, and one that doesn't says so; the
        // pauses after that may be long, and pings notice when the node is gone.
        let start = wire.streaming::<_, ShardAssignments>(&GET_SHARD_ASSIGNMENTS, request);
        let mut stream = match tokio::time::timeout(wire.call_timeout(), start).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(status)) => return status.into(),
            Err(_) => return Error::timeout("tell the shards' leaders"),
        };
        loop {
            match stream.message().await {
                Ok(Some(assignments)) => {
                    let found = shard::find(&assignments, &self.namespace, &self.partition_key);
                    self.learn(node, |view| {
                        view.dialect = Some(dialect);
                        view.error = found.as_ref().err().cloned();
                        view.assignment = found.ok();
                    });
                }
                Ok(None) => return Error::new(Kind::Unavailable, "oxia: the node said no more"),
                Err(status) => return status.into(),
            }
        }
    }

    /// Notes something of a node. An opinion outlives the connection on which it was given: the node
    /// may be gone, but what it said of others may still be the best that is known.
    fn learn(&self, node: &Address, note: impl FnOnce(&mut View)) {
        let mut views = self.views.lock();
        views.arrivals += 1;
        let arrivals = views.arrivals;
        let view = views.nodes.entry(node.clone()).or_default();
        let before = view.assignment.clone();
        note(view);
        // A mere error changes no opinion, and must not make an old one look new.
        if view.error.is_none() || view.assignment != before || view.assignment.is_none() {
            view.arrived = arrivals;
        }
        drop(views);
        self.changes.send_modify(|changes| *changes += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address { tls: false, host: "h".into(), port }
    }

    fn says(discovery: &Discovery, node: u16, leader: u16) {
        discovery.learn(&address(node), |view| {
            view.error = None;
            view.assignment = Some(Assignment { shard: 0, leader: address(leader) });
        });
    }

    fn ports(discovery: &Discovery) -> Vec<u16> {
        discovery.candidates().iter().map(|candidate| candidate.leader.port).collect()
    }

    #[test]
    fn the_newest_opinion_comes_first_and_each_leader_once() {
        let discovery = Discovery::new("ns".into(), "ks".into());
        assert!(ports(&discovery).is_empty());
        says(&discovery, 1, 1);
        says(&discovery, 2, 1);
        says(&discovery, 3, 2);
        assert_eq!(ports(&discovery), [2, 1]);
        says(&discovery, 1, 3);
        assert_eq!(ports(&discovery), [3, 2, 1]);
    }

    #[test]
    fn a_lost_connection_makes_no_opinion_newer() {
        let discovery = Discovery::new("ns".into(), "ks".into());
        let lost = || Error::new(Kind::Unavailable, "lost");
        discovery.learn(&address(9), |view| view.error = Some(lost()));
        assert_eq!(discovery.error().map(|error| error.kind), Some(Kind::Unavailable));
        says(&discovery, 1, 1);
        says(&discovery, 2, 2);
        discovery.learn(&address(1), |view| view.error = Some(lost()));
        assert_eq!(ports(&discovery), [2, 1]);
    }
}
