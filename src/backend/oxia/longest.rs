//! How long a session of the server may be.
//!
//! There is no request that tells. A session that is too long is refused, and one that is not can be
//! closed at once, so a few of them find it out. Each gateway does that for itself, when it starts: what
//! keeps a lease's time is written down with the lease, and need not be the same for all. Where the server
//! can't be asked then, sessions are as long as an unmodified one takes them until it can.

use super::shard::{Means, Shard, ShardError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The longest session of an unmodified server.
pub const USUAL: Duration = Duration::from_secs(300);
/// What a request can hold: milliseconds in 32 bits; in whole seconds.
pub const MOST: Duration = Duration::from_secs(u32::MAX as u64 / 1000);
/// Attempts of one probe that gets no answer.
const ATTEMPTS: usize = 5;
/// Pause after such an attempt.
const AGAIN: Duration = Duration::from_millis(200);
/// Pause before a server that could not be asked is asked again.
const LATER: Duration = Duration::from_secs(10);

/// That the server could not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unanswered;

/// What is known of it before the server was asked, for sessions of up to `wanted`.
pub fn unasked(wanted: Duration) -> Duration {
    wanted.min(USUAL)
}

/// Tells `longest` the longest session that the server takes, in whole seconds, up to `wanted`. Returns whether
/// the server has answered.
pub async fn ask<S: Shard>(shard: &S, wanted: Duration, longest: &watch::Sender<Duration>) -> bool {
    let mut search = Search::new(wanted.min(MOST).as_secs());
    while let Some(seconds) = search.next() {
        match takes(shard, Duration::from_secs(seconds)).await {
            Ok(taken) => search.answer(seconds, taken),
            Err(Unanswered) => return false,
        }
    }
    let seconds = search.taken;
    if seconds > USUAL.as_secs() {
        tracing::info!(seconds, "longest session that is used");
    }
    longest.send_replace(Duration::from_secs(seconds));
    true
}

/// Goes on asking until the server has answered.
pub async fn ask_until_answered<S: Shard>(
    shard: Arc<S>,
    wanted: Duration,
    longest: watch::Sender<Duration>,
) {
    while !ask(&*shard, wanted, &longest).await {
        tokio::time::sleep(LATER).await;
    }
}

/// Looks for the largest number up to `wanted` that is taken. What is `USUAL` or less is taken.
#[derive(Debug)]
struct Search {
    wanted: u64,
    /// The largest that is known to be.
    taken: u64,
    /// The smallest that is known not to be, or is not wanted.
    refused: u64,
}

impl Search {
    fn new(wanted: u64) -> Self {
        Self { wanted, taken: wanted.min(USUAL.as_secs()), refused: wanted + 1 }
    }

    /// What is to be asked next; `None` once `taken` is the one.
    fn next(&self) -> Option<u64> {
        let between = self.refused - self.taken - 1;
        match self {
            _ if between == 0 => None,
            _ if self.taken == USUAL.as_secs() => Some(self.taken + 1),
            _ if self.refused > self.wanted => Some(self.wanted),
            _ => Some(self.taken + between.div_ceil(2)),
        }
    }

    fn answer(&mut self, seconds: u64, taken: bool) {
        let known = if taken { &mut self.taken } else { &mut self.refused };
        *known = seconds;
    }
}

async fn takes<S: Shard>(shard: &S, timeout: Duration) -> Result<bool, Unanswered> {
    for _ in 0..ATTEMPTS {
        match shard.create_session(timeout, "probe".into()).await {
            Ok(session) => {
                let means = Means::Made(session.epoch);
                if let Err(error) = shard.close_session(session.id, means).await {
                    tracing::info!(%error, ?timeout, "a session without use ends by itself");
                }
                return Ok(true);
            }
            Err(ShardError::Refused(_)) => return Ok(false),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    Err(Unanswered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::oxia::checkpoint::fake::Fake;

    fn found(wanted: u64, limit: u64) -> (u64, usize) {
        let (mut search, mut asked) = (Search::new(wanted), 0);
        while let Some(seconds) = search.next() {
            asked += 1;
            search.answer(seconds, seconds <= limit);
        }
        (search.taken, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_away_is_asked_until_it_answers() {
        let shard = Arc::new(Fake::new());
        shard.refuse_sessions(12);
        let wanted = Duration::from_secs(3_600);
        let (told, longest) = watch::channel(unasked(wanted));
        assert!(!ask(&*shard, wanted, &told).await);
        assert_eq!(*longest.borrow(), USUAL, "until it is known");
        let asking = ask_until_answered(shard, wanted, told);
        tokio::time::timeout(Duration::from_secs(60), asking).await.expect("answered");
        assert_eq!(*longest.borrow(), wanted);
    }

    #[test]
    fn the_longest_session_is_found() {
        // An unmodified server is asked once.
        assert_eq!(found(4_294_967, 300), (300, 1));
        assert_eq!(found(60, 300), (60, 0));
        assert_eq!(found(4_294_967, u64::MAX), (4_294_967, 2));
        for limit in [301, 302, 3_600, 86_400, 4_294_966] {
            let (longest, asked) = found(4_294_967, limit);
            assert_eq!(longest, limit);
            assert!(asked < 30, "{asked}");
        }
        assert_eq!(found(3_600, 600).0, 600);
    }
}
