//! Watch fan-out: from committed revisions to the watchers that asked for them.
//!
//! One hub thread owns every watcher as a cursor into history. It takes committed revisions from
//! [`Hub::publish`], finds the watchers of each event, and puts shared, already encoded events into
//! the bounded outbox of each stream. A watcher whose stream is full, or that starts in the past,
//! is not queued for: it keeps its cursor and is served from history, by reader threads, whenever
//! there is room.
//!
//! What holds at any time:
//! - A watcher that is `Live` has been given every event below the hub's revision; one that is not
//!   has been given every event below its own cursor. So a cursor moves only after its events are
//!   in the outbox, and nothing is skipped or repeated.
//! - An outbox is in the order in which the client will see it. Progress at revision R is put
//!   there by the thread that has put all events up to R there before.
//! - The hub thread holds no lock while it reads history, and never waits for a client.
//!
//! Relies on: revisions published in order (missing ones are read from history), and history that
//! reports a compaction instead of answering without the compacted events.
//!
//! Deliberately absent: the network, response headers, permissions, and any copy of the keyspace.

mod batch;
mod catch_up;
mod deliver;
#[cfg(test)]
pub(crate) mod fake;
mod hub;
mod index;
mod interval;
mod list;
mod outbox;
mod recent;
mod registry;
mod stats;
mod stream;
#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use hub::{Closed, Hub, Settings};
pub use index::{KeyRange, RangeEnd};
pub use list::{WatcherInfo, Watchers};
pub use outbox::{Notice, Notices, What};
pub use registry::CreateWatcher;
pub use stats::Stats;
pub use stream::StreamControl;
