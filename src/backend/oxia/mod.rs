//! The replicated backend: any number of gateways on a shard of an Oxia cluster, none of them a leader.
//!
//! The log is a sequence of records in one shard, the sessions are the shard's own. A gateway holds
//! a copy of the keyspace, made from the log, and nothing that can't be made again.
//!
//! | part | what it does |
//! |---|---|
//! | [`shard`] | what is needed of Oxia, as a trait: the seam for simulation |
//! | [`names`] | how records are called |
//! | [`propose`] | commands into entries, one append at a time; settles appends whose answer was lost |
//! | [`tail`] | the log's entries, in order and without a gap |
//! | [`backlog`] | entries that wait to be applied, bounded in number and in bytes |
//! | [`apply`] | entries into the keyspace; answers who proposed them |
//! | [`barrier`] | how far the log reached, proven; shared by all reads that wait |
//! | [`checkpoint`] | the keyspace as of one position, so that the log before it can go |
//! | [`join`] | an id, a record that lives with the process, a registration |
//! | [`client`], [`cluster`] | the calls to a real cluster; the trait on them |
//! | [`in_flight`] | what was appended and not yet applied, and who waits for it |
//! | [`longest`] | how long a session the server takes |
//! | [`outage`] | the log's lines about a shard that does not answer: soon, then seldom |
//! | [`compare`] | whether the gateways hold the same |
//! | [`members`] | which gateways live, and which of them looks after things |
//! | [`sessions`] | the shard's sessions, each with a marker that tells of its end |
//! | [`log`] | all of the log's parts as a [`crate::backend::Log`] |
//!
//! Relies on: positions that Oxia gives out are contiguous and never given twice, and an acknowledged
//! append is kept. Deliberately absent: what a command means, and any clock that another gateway
//! would have to agree with.

pub mod apply;
pub mod backlog;
pub mod barrier;
pub mod checkpoint;
pub mod client;
pub mod cluster;
pub mod compare;
pub mod in_flight;
pub mod join;
pub mod log;
pub mod longest;
pub mod members;
pub mod names;
pub mod outage;
pub mod propose;
pub mod sessions;
pub mod shard;
#[cfg(test)]
mod sim;
pub mod tail;
