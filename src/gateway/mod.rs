//! The protocols in front of the keyspace: translates requests and answers, decides nothing.
//!
//! One file a service; [`error`] is the one table of gRPC codes and texts, [`validate`] what is
//! refused before it reaches the log. Deliberately absent: any state of its own.

pub mod audited;
pub mod auth;
pub mod authority;
pub mod cluster;
pub mod dispatch;
pub mod election;
pub mod error;
pub mod handshake;
pub mod health;
pub mod http;
pub mod identity;
mod in_order;
pub mod json;
pub mod kv;
pub mod lease;
pub mod listen;
pub mod lock;
pub mod maintenance;
pub mod messages;
pub mod queue;
pub mod serve;
pub mod snapshot;
pub mod told;
pub mod transport;
pub mod ui;
pub mod validate;
pub mod watch;

use crate::auth::Auth;
use crate::backend::{Log, Sessions, in_time};
use crate::config::Limits;
use crate::keyspace::command::{AlarmChange, Op, internal};
use crate::keyspace::reader::Reader;
use crate::lease::Leases;
use crate::telemetry::Metrics;
use error::Error;
use identity::Identity;
use leaseway_proto::etcdserverpb as pb;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What every service needs.
pub struct Context<L, S> {
    /// Where commands go.
    pub log: Arc<L>,
    /// Where reads come from.
    pub reader: Reader,
    /// Lease requests.
    pub leases: Arc<Leases<L, S>>,
    /// Who answers.
    pub identity: Identity,
    /// Who requests come from.
    pub auth: Auth,
    /// Limits on requests.
    pub limits: Limits,
    /// Bytes of rows at which writes are refused and an alarm is raised; none is no limit.
    pub quota_bytes: Option<i64>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl<L: Log, S: Sessions> Context<L, S> {
    /// Revision that a client may rely on.
    pub fn revision(&self) -> i64 {
        self.reader.view().now().visible.revision
    }

    /// Waits until a commit is durable: nobody is told what a crash could take back.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub async fn durable(&self, position: u64) -> Result<(), Error> {
        Ok(in_time(self.reader.view().durable(position)).await?)
    }

    /// Refuses a request that would go beyond the quota, and raises the alarm that then refuses all
    /// of its kind. `cost` in bytes; 0 for a request that stores nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub async fn within_quota(&self, cost: usize) -> Result<(), Error> {
        let Some(quota) = self.quota_bytes else { return Ok(()) };
        let used = self.reader.shared().row_bytes.load(Ordering::Relaxed);
        if cost == 0 || used.saturating_add_unsigned(cost as u64) < quota {
            return Ok(());
        }
        let (member, alarm) = (self.identity.member_id, pb::AlarmType::Nospace as i32);
        let alarm = AlarmChange { raise: true, member, alarm };
        // Whether or not it can be raised, this request is refused.
        match self.log.propose(internal(Op::Alarm(alarm))).await {
            Ok(outcome) if outcome.changed => told::alarm(&alarm, None),
            // It is raised already: whoever raised it has said so.
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot raise the NOSPACE alarm"),
        }
        Err(Error::NoSpace)
    }
}
