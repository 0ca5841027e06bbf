//! Bringing a store up to its log when the process starts.
//!
//! The store is as of its last durable commit; the log holds what was answered since. Applying it
//! again gives the same state, because that is all that the state depends on.

use super::wal::{Logged, Wal};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::Staging;
use crate::storage::{Durability, Engine, StorageError};

/// Applies logged groups to a loaded machine, commits the result durably, and empties the log.
///
/// # Errors
/// Storage errors, and commands that this version does not know.
pub fn recover(
    machine: &mut Machine,
    engine: &dyn Engine,
    wal: &mut Wal,
    groups: Vec<Logged>,
) -> Result<(), StorageError> {
    for group in groups {
        let mut staging = Staging::new(engine.snapshot()?, group.position);
        for command in &group.commands {
            if command.op.is_none() {
                return Err(StorageError::Corrupted(
                    "the log holds a command of a newer version".into(),
                ));
            }
            machine.apply(&mut staging, command)?;
        }
        machine.finish_group(&mut staging, true);
        let (batch, _) = staging.finish();
        engine.commit(&batch, Durability::Deferred)?;
    }
    engine.commit(&machine.checkpoint_batch(), Durability::Immediate)?;
    wal.rewind();
    Ok(())
}
