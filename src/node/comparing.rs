//! What a gateway compares with the others: see [`crate::backend::oxia::compare`].

use crate::backend::oxia::compare::{Alarm, Board, Hash, Parts, Settings};
use crate::backend::oxia::log::OxiaLog;
use crate::backend::oxia::members::Living;
use crate::backend::{Duty, Log};
use crate::config::Config;
use crate::gateway::told;
use crate::keyspace::command::{AlarmChange, Op, internal};
use crate::keyspace::reader::Reader;
use leaseway_proto::etcdserverpb::AlarmType;
use std::sync::Arc;
use tokio::sync::watch;

/// Comparing of what `reader` reads, with alarms through `log`.
pub(super) fn parts(
    config: &Config,
    log: &Arc<OxiaLog>,
    reader: &Reader,
    (board, living, duty): (Arc<Board>, watch::Receiver<Living>, watch::Receiver<Duty>),
) -> Arc<Parts> {
    let wanted = config.comparisons;
    let membership = log.membership();
    let revisions = reader.clone();
    Arc::new(Parts {
        board,
        living,
        duty,
        hash: hashing(reader.clone()),
        revisions: Box::new(move || {
            let visible = revisions.view().now().visible;
            (visible.revision, visible.compacted)
        }),
        me: Box::new(move || membership.borrow().as_ref().map(|me| me.id)),
        alarm: alarm(log.clone(), reader.clone()),
        settings: Settings { every: wanted.every, after_compactions: wanted.after_compactions },
    })
}

fn hashing(reader: Reader) -> Hash {
    Box::new(move |revision| {
        let reader = reader.clone();
        Box::pin(async move {
            // Not on a thread that serves: it reads everything.
            let hashed = tokio::task::spawn_blocking(move || reader.hash_kv(revision)).await;
            match hashed {
                Ok(Ok(hash)) => Some(hash),
                Ok(Err(error)) => {
                    tracing::info!(%error, revision, "no hash of what is here");
                    None
                }
                Err(_) => None,
            }
        })
    })
}

fn alarm(log: Arc<OxiaLog>, reader: Reader) -> Alarm {
    Box::new(move |member| {
        let (log, reader) = (log.clone(), reader.clone());
        Box::pin(async move {
            let alarm = AlarmType::Corrupt as i32;
            let raised = reader.shared().alarms.list(alarm).value;
            if raised.iter().any(|raised| raised.member_id == member) {
                return;
            }
            let raise = AlarmChange { raise: true, member, alarm };
            match log.propose(internal(Op::Alarm(raise))).await {
                Ok(outcome) if outcome.changed => told::alarm(&raise, None),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "cannot raise the CORRUPT alarm"),
            }
        })
    })
}
