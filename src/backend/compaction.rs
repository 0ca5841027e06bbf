//! The line of the log that says when a compaction has ended.
//!
//! Each server says it for itself: what a compaction asks for, each has to remove from its own store.

use std::time::Instant;

/// The compaction that is under way, if there is one.
#[derive(Debug, Default)]
pub struct CompactionLine {
    since: Option<Instant>,
}

impl CompactionLine {
    /// To be called whenever the keyspace may have come on: `finished` is the revision through which a
    /// compaction has just removed what it may, `compacting` whether there is more to do.
    pub fn note(&mut self, finished: Option<i64>, compacting: bool) {
        if let Some(compact_revision) = finished {
            let took = self.since.take().map(|since| since.elapsed()).unwrap_or_default();
            tracing::info!(compact_revision, ?took, "finished scheduled compaction");
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
        let mut line = CompactionLine::default();
        line.note(None, false);
        assert_eq!(line.since, None);
        line.note(None, true);
        let begun = line.since.expect("one has begun");
        line.note(None, true);
        assert_eq!(line.since, Some(begun));
        // Another one was asked for meanwhile.
        line.note(Some(7), true);
        assert!(line.since.is_some_and(|since| since >= begun));
        line.note(Some(9), false);
        assert_eq!(line.since, None);
    }
}
