//! The protocols in front of the keyspace: translates requests and answers, decides nothing.
//!
//! One file a service; [`error`] is the one table of gRPC codes and texts, [`validate`] what is
//! refused before it reaches the log. Deliberately absent: any state of its own.

pub mod auth;
pub mod cluster;
pub mod dispatch;
pub mod error;
pub mod health;
pub mod http;
pub mod identity;
pub mod kv;
pub mod lease;
pub mod listen;
pub mod maintenance;
pub mod serve;
pub mod transport;
pub mod validate;
pub mod watch;

use crate::backend::{Log, Sessions};
use crate::keyspace::reader::Reader;
use crate::lease::Leases;
use crate::telemetry::Metrics;
use identity::Identity;
use std::sync::Arc;

/// The etcd version whose behaviour is offered, and which clients are told.
pub const ETCD_VERSION: &str = "3.7.3";
/// The storage version that goes with it.
pub const STORAGE_VERSION: &str = "3.7.0";

/// Limits that act before the log.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest request in bytes, as it would be logged.
    pub max_request_bytes: usize,
    /// Operations in one branch of a transaction.
    pub max_txn_ops: usize,
}

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
    /// Limits on requests.
    pub limits: Limits,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl<L: Log, S: Sessions> Context<L, S> {
    /// Revision that a client may rely on.
    pub fn revision(&self) -> i64 {
        self.reader.view().now().visible.revision
    }
}
