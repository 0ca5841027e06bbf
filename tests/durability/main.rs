//! What was acknowledged is there after whatever happens to the process or its disk.

#[path = "../support/mod.rs"]
mod support;

mod damage;
mod full_disk;
mod history;
mod kill;
