//! Checkpoints: the keyspace as of one position of the log, so that the log before it can go.
//!
//! | record | holds |
//! |---|---|
//! | `checkpoint.POSITION.RANDOM/NUMBER` | a piece of the storage tables' rows |
//! | `checkpoint.POSITION.RANDOM/manifest` | counts and checksums; written when all pieces are there |
//! | `checkpoint/POSITION.RANDOM` | says that the folder may exist; written before its first piece |
//! | `head` | names the newest whole checkpoint; moved by compare-and-swap, to higher positions only |
//!
//! A checkpoint's names are its own and its records never change. Nothing rests on there being
//! only one who makes them: one that is at or below the head can't become the head any more, so that
//! everything below the head, whatever it is and whoever may still be writing to it, can be deleted.
//! That is also how those that were never finished go. The log record at the head's position
//! stays: by it a loader knows that log and checkpoint belong together, and there is always a newest
//! record.
//!
//! | part | what it does |
//! |---|---|
//! | [`format`] | the records' contents |
//! | [`write`] | makes one |
//! | [`begin`] | makes the one that an imported keyspace begins with |
//! | [`load`] | finds the newest and loads it |
//! | [`pin`] | keeps what a loader needs from being deleted |
//! | [`keep`] | who makes one and when; trims the log, deletes what is superseded |
//!
//! A keyspace may begin with a checkpoint ([`begin`]): then it is the log's first record that names it, and
//! there is no head until there is a later one.
//!
//! Deliberately absent: what is in the tables.

pub mod begin;
pub mod format;
pub mod keep;
pub mod load;
pub mod pin;
pub mod write;

#[cfg(test)]
pub(in crate::backend::oxia) mod fake;
#[cfg(test)]
mod tests;
