//! The published state: what readers may rely on, because it is durable.

use super::event::Visible;
use parking_lot::RwLock;
use tokio::sync::watch;

/// What has been committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Revision and compaction point.
    pub visible: Visible,
    /// Number of commits so far.
    pub position: u64,
}

/// Holds what is published, and wakes those who wait for a position.
#[derive(Debug)]
pub struct View {
    now: RwLock<Published>,
    positions: watch::Sender<u64>,
}

impl View {
    /// Starts with a state that is already durable.
    pub fn new(published: Published) -> Self {
        Self { now: RwLock::new(published), positions: watch::Sender::new(published.position) }
    }

    /// The newest published state.
    pub fn now(&self) -> Published {
        *self.now.read()
    }

    /// Publishes the outcome of a commit.
    pub fn publish(&self, published: Published) {
        *self.now.write() = published;
        self.positions.send_replace(published.position);
    }

    /// Waits until `position` is durable. Returns at once when it is.
    pub async fn durable(&self, position: u64) {
        if self.now().position >= position {
            return;
        }
        let mut positions = self.positions.subscribe();
        // The sender lives as long as `self`, so this can't fail.
        let _ = positions.wait_for(|reached| *reached >= position).await;
    }
}
