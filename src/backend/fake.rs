//! A log that answers what a test has written down, for what proposes by itself.

use super::{Log, ProposeError};
use crate::keyspace::command::{Command, Op, Outcome, Reply, command};
use crate::keyspace::load::load;
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

/// What a keyspace in which these have been done looks like.
pub fn keyspace_after(ops: impl IntoIterator<Item = Op>) -> Reader {
    let engine: Arc<dyn Engine> = Arc::new(RedbEngine::in_memory().expect("an engine"));
    let mut machine = load(&*engine.snapshot().expect("a snapshot"), &mut |_| {}).expect("loads");
    let position = machine.next_position();
    let mut staging = Staging::new(engine.snapshot().expect("a snapshot"), position);
    for op in ops {
        let outcome = machine.apply(&mut staging, &command(op)).expect("applied");
        assert!(outcome.reply.is_ok(), "{outcome:?}");
    }
    machine.finish_group(&mut staging, true);
    let (batch, _) = staging.finish();
    engine.commit(&batch, Durability::Deferred).expect("a commit");
    let view = Arc::new(View::new(machine.published()));
    Reader::new(machine.shared().clone(), engine, view)
}

/// An outcome with this answer.
pub fn outcome(reply: Reply) -> Outcome {
    Outcome { reply: Ok(reply), revision: 1, changed: true }
}
