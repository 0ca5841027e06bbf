//! The client of an Oxia shard, against a real server and against one that misbehaves.

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod fake;
mod faults;
mod real;
