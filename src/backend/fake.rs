//! What tests of backends work with: a log that answers what a test has written down, for what proposes by
//! itself, and keyspaces in which something has been done.

use super::local::log::Publish;
use super::{Log, ProposeError};
use crate::keyspace::command::{Command, Op, Outcome, Reply, command};
use crate::keyspace::event::{RevisionEvents, Visible};
use crate::keyspace::load::load;
use crate::keyspace::machine::Machine;
use crate::keyspace::reader::Reader;
use crate::keyspace::staging::Staging;
use crate::keyspace::view::View;
use crate::storage::redb_engine::RedbEngine;
use crate::storage::{Durability, Engine};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Gives its answers in order, and says after the last of them that it has stopped.
pub struct FakeLog {
    answers: Mutex<VecDeque<Result<Outcome, ProposeError>>>,
    asked: Mutex<Vec<Command>>,
}

impl FakeLog {
    /// A log with these answers.
    pub fn new(answers: impl IntoIterator<Item = Result<Outcome, ProposeError>>) -> Arc<Self> {
        let answers = Mutex::new(answers.into_iter().collect());
        Arc::new(Self { answers, asked: Mutex::default() })
    }

    /// What has been proposed so far.
    pub fn asked(&self) -> Vec<Command> {
        self.asked.lock().clone()
    }
}

impl Log for FakeLog {
    async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        self.asked.lock().push(command);
        self.answers.lock().pop_front().unwrap_or(Err(ProposeError::Stopped))
    }

    async fn barrier(&self) -> Result<(), ProposeError> {
        Ok(())
    }

    async fn compacted(&self, _: i64) -> Result<(), ProposeError> {
        Ok(())
    }

    fn pending(&self) -> u64 {
        0
    }
}

/// A keyspace in which these have been done, and where it is stored.
pub fn machine_after(ops: impl IntoIterator<Item = Op>) -> (Machine, Arc<dyn Engine>) {
    let engine: Arc<dyn Engine> = Arc::new(RedbEngine::in_memory().expect("an engine"));
    let mut machine = load(&*engine.snapshot().expect("a snapshot"), &mut |_| {}).expect("loads");
    go_on(&mut machine, &*engine, ops.into_iter().map(command));
    (machine, engine)
}

/// Does these as well.
pub fn go_on(
    machine: &mut Machine,
    engine: &dyn Engine,
    commands: impl IntoIterator<Item = Command>,
) {
    let position = machine.next_position();
    let mut staging = Staging::new(engine.snapshot().expect("a snapshot"), position);
    let mut has_commands = false;
    for command in commands {
        has_commands = true;
        let outcome = machine.apply(&mut staging, &command).expect("applied");
        assert!(outcome.reply.is_ok(), "{outcome:?}");
    }
    machine.finish_group(&mut staging, has_commands);
    let (batch, _) = staging.finish();
    engine.commit(&batch, Durability::Deferred).expect("a commit");
}

/// What a keyspace in which these have been done looks like.
pub fn keyspace_after(ops: impl IntoIterator<Item = Op>) -> Reader {
    let (machine, engine) = machine_after(ops);
    let view = Arc::new(View::new(machine.published()));
    Reader::new(machine.shared().clone(), engine, view)
}

/// Whoever does not watch.
pub struct Nobody;

impl Publish for Nobody {
    fn publish(&self, _: Vec<RevisionEvents>, _: Visible) {}
}

/// An outcome with this answer.
pub fn outcome(reply: Reply) -> Outcome {
    Outcome { reply: Ok(reply), revision: 1, changed: true }
}
