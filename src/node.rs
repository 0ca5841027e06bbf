//! One server put together: the store, the services on it, and the endpoints.

use std::sync::Arc;

use leaseway_proto::etcdserverpb::AlarmType;
use tokio::sync::watch;

use crate::config::{Config, MetricsDetail};
use crate::data_dir::DataDir;
use crate::gateway::dispatch::Services;
use crate::gateway::health::{HealthService, ServingStatus};
use crate::gateway::http::{Endpoints, HealthState, ReadFuture};
use crate::gateway::serve::App;
use crate::telemetry::Metrics;

/// Everything behind the listeners.
pub struct Node {
    /// Why the store stopped by itself, once it has.
    failure: watch::Receiver<Option<String>>,
    /// Follows the node's readiness into `grpc.health.v1`.
    serving: watch::Sender<ServingStatus>,
    _failure: watch::Sender<Option<String>>,
}

impl Node {
    /// Opens the store in `dir` and builds the services on it.
    ///
    /// # Errors
    /// One line saying what cannot be opened and why.
    pub fn open(config: &Config, _dir: &DataDir) -> Result<(Node, App), String> {
        let metrics = Arc::new(Metrics::new(config.metrics == MetricsDetail::Extensive));
        let (serving, status) = watch::channel(ServingStatus::Serving);
        let services = Services::new(metrics.clone(), config.warning_unary_request_duration)
            .add(HealthService::new(status));
        let endpoints = Endpoints::new(Arc::new(NoStore), metrics.clone(), config.access.clone());
        let (failed, failure) = watch::channel(None);
        let node = Node { failure, serving, _failure: failed };
        Ok((node, App { services, endpoints, metrics }))
    }

    /// Ends when the store has stopped by itself, with the reason; never otherwise.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Tells clients that ask that this server is on its way out.
    pub fn announce_stop(&self) {
        self.serving.send_replace(ServingStatus::NotServing);
    }

    /// Closes the store; all connections are closed by now.
    pub async fn close(self) {}
}

/// The state of a server that has no store.
struct NoStore;

impl HealthState for NoStore {
    fn alarms(&self) -> Vec<AlarmType> {
        Vec::new()
    }

    fn read(&self, _serializable: bool) -> ReadFuture<'_> {
        Box::pin(std::future::ready(Err("there is no store".into())))
    }
}
