//! Tells that a compaction has ended: those who wait for it, and the log, in a line.
//!
//! Each server says it for itself: what a compaction asks for, each has to remove from its own store.

use std::time::Instant;
use tokio::sync::watch;

/// How far compaction is, and the one that is under way, if there is one.
#[derive(Debug)]
pub struct CompactionTold {
    finished: watch::Sender<i64>,
    since: Option<Instant>,
}

impl CompactionTold {
    /// Begins where everything has been removed up to the revision `finished`, and gives a receiver of it. With
    /// `compacting` there is more to do, that an earlier process has not come to: its time is taken from here on.
    pub fn new(finished: i64, compacting: bool) -> (Self, watch::Receiver<i64>) {
        let (finished, receiver) = watch::channel(finished);
        (Self { finished, since: compacting.then(Instant::now) }, receiver)
    }

    /// To be called whenever the keyspace may have come on: `finished` is the revision through which
    /// compactions have removed what they may, `compacting` whether there is more to do.
    pub fn note(&mut self, finished: i64, compacting: bool) {
        let tell = |told: &mut i64| std::mem::replace(told, finished) != finished;
        if self.finished.send_if_modified(tell) {
            let compact_revision = finished;
            let took = self.since.take().map(|since| tracing::field::debug(since.elapsed()));
            tracing::info!(compact_revision, took, "finished scheduled compaction");
        }
        match (compacting, self.since) {
            (true, None) => self.since = Some(Instant::now()),
            (false, Some(_)) => self.since = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_taken_from_the_beginning_of_each_compaction() {
        let (mut line, finished) = CompactionTold::new(0, false);
        line.note(0, false);
        assert_eq!(line.since, None);
        line.note(0, true);
        let begun = line.since.expect("one has begun");
        line.note(0, true);
        assert_eq!(line.since, Some(begun));
        // Another one was asked for meanwhile.
        assert!(!finished.has_changed().unwrap());
        line.note(7, true);
        assert_eq!(*finished.borrow(), 7);
        assert!(line.since.is_some_and(|since| since >= begun));
        line.note(9, false);
        assert_eq!(line.since, None);
    }

    #[test]
    fn what_an_earlier_process_began_is_timed_from_the_start() {
        let (mut line, finished) = CompactionTold::new(5, true);
        let begun = line.since.expect("one has begun");
        line.note(5, true);
        assert_eq!(line.since, Some(begun));
        line.note(9, false);
        assert_eq!((*finished.borrow(), line.since), (9, None));
    }
}
