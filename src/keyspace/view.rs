//! The published state: what readers may rely on, because it is durable.

use super::auth::AuthState;
use super::event::Visible;
use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::Notify;

/// What has been committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Revision and compaction point.
    pub visible: Visible,
    /// Number of commits so far.
    pub position: u64,
    /// Users and roles, and whether they matter.
    pub auth: Arc<AuthState>,
}

/// What has been committed, without users and roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Revision and compaction point.
    pub visible: Visible,
    /// Number of commits so far.
    pub position: u64,
}

/// Holds what is published, and wakes those who wait for a position.
#[derive(Debug)]
pub struct View {
    now: RwLock<Published>,
    published: Notify,
}

impl View {
    /// Starts with a state that is already durable.
    pub fn new(published: Published) -> Self {
        Self { published: Notify::new(), now: RwLock::new(published) }
    }

    /// The newest published state.
    pub fn now(&self) -> Now {
        let now = self.now.read();
        Now { visible: now.visible, position: now.position }
    }

    /// The newest published state with the users and roles of the same moment, which are what a read
    /// of that state is checked against.
    pub fn with_auth(&self) -> Published {
        self.now.read().clone()
    }

    /// The same, without users and roles while nobody asks for them because authentication is off.
    pub fn with_auth_if_enabled(&self) -> (Now, Option<Arc<AuthState>>) {
        let now = self.now.read();
        let auth = now.auth.enabled.then(|| now.auth.clone());
        (Now { visible: now.visible, position: now.position }, auth)
    }

    /// Users and roles.
    pub fn auth(&self) -> Arc<AuthState> {
        self.now.read().auth.clone()
    }

    /// Whether authentication is on.
    pub fn auth_enabled(&self) -> bool {
        self.now.read().auth.enabled
    }

    /// Publishes the outcome of a commit.
    pub fn publish(&self, published: Published) {
        *self.now.write() = published;
        self.published.notify_waiters();
    }

    /// Waits until `position` is durable. Returns at once when it is.
    pub async fn durable(&self, position: u64) {
        loop {
            // Made before looking: whatever is published from now on wakes it, in the order of asking.
            let published = self.published.notified();
            if self.now().position >= position {
                return;
            }
            published.await;
        }
    }
}
