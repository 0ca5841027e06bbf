//! Keeping a store and its log together: bringing the store up to the log when the process starts, and
//! checkpoints, after which what has been logged is not needed any more.
//!
//! At the start the store is as of its last durable commit; the log holds what was answered since. Applying it
//! again gives the same state, because that is all that the state depends on.

use super::wal::{Logged, Wal};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::Staging;
use crate::storage::{Batch, Durability, Engine, StorageError};
use leaseway_proto::log::Entry;
use prost::Message;

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
    checkpoint(machine, engine, wal)
}

/// Makes the store durable as it is, so that the log is not needed any more.
///
/// # Errors
/// Storage errors.
pub fn checkpoint(
    machine: &Machine,
    engine: &dyn Engine,
    wal: &mut Wal,
) -> Result<(), StorageError> {
    engine.commit(&machine.checkpoint_batch(), Durability::Immediate)?;
    wal.turn();
    Ok(())
}

/// Makes room for a group in the log. When its current file is full, making the store durable is begun, and
/// the group will go to the other file.
///
/// # Errors
/// Storage errors, after which it is not known what is durable.
pub fn make_room(wal: &mut Wal, engine: &dyn Engine, entry: &Entry) -> Result<(), StorageError> {
    if !wal.fits(entry.encoded_len()) {
        // What is in the other file has been in the store since the checkpoint before this one. That is
        // long finished, unless the disk can't keep up.
        engine.settle()?;
        engine.commit(&Batch::default(), Durability::Begun)?;
        wal.turn();
    }
    Ok(())
}
