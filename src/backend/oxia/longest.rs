//! How long a session of the server may be.
//!
//! There is no request that tells. A session that is too long is refused, and one that is not can be
//! closed at once, so a few of them find it out. Each gateway does that for itself, when it starts: what
//! keeps a lease's time is written down with the lease, and need not be the same for all.

use super::shard::{Means, Shard, ShardError};
use std::time::Duration;

/// The longest session of an unmodified server.
pub const USUAL: Duration = Duration::from_secs(300);
/// What a request can hold: milliseconds in 32 bits; in whole seconds.
pub const MOST: Duration = Duration::from_secs(u32::MAX as u64 / 1000);
/// Attempts of one probe that gets no answer.
const ATTEMPTS: usize = 5;
/// Pause after such an attempt.
const AGAIN: Duration = Duration::from_millis(200);

/// The longest session that the server takes, in whole seconds, up to `wanted`. Where the server can't be
/// asked, what an unmodified one takes.
pub async fn longest<S: Shard>(shard: &S, wanted: Duration) -> Duration {
    let found = search(wanted.min(MOST).as_secs(), async |seconds| {
        takes(shard, Duration::from_secs(seconds)).await
    });
    Duration::from_secs(found.await)
}

/// The largest number up to `wanted` that is taken. What is `USUAL` or less is taken.
async fn search(wanted: u64, mut takes: impl AsyncFnMut(u64) -> bool) -> u64 {
    let usual = USUAL.as_secs();
    if wanted <= usual || !takes(usual + 1).await {
        return wanted.min(usual);
    }
    if takes(wanted).await {
        return wanted;
    }
    let (mut taken, mut refused) = (usual + 1, wanted);
    while refused - taken > 1 {
        let middle = taken + (refused - taken) / 2;
        if takes(middle).await { taken = middle } else { refused = middle }
    }
    taken
}

async fn takes<S: Shard>(shard: &S, timeout: Duration) -> bool {
    for _ in 0..ATTEMPTS {
        match shard.create_session(timeout, "probe".into()).await {
            Ok(session) => {
                let means = Means::Made(session.epoch);
                if let Err(error) = shard.close_session(session.id, means).await {
                    tracing::info!(%error, ?timeout, "a session without use ends by itself");
                }
                return true;
            }
            Err(ShardError::Refused(_)) => return false,
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::search;

    async fn found(wanted: u64, limit: u64) -> (u64, usize) {
        let mut asked = 0;
        let found = search(wanted, async |seconds| {
            asked += 1;
            seconds <= limit
        });
        (found.await, asked)
    }

    #[tokio::test]
    async fn the_longest_session_is_found() {
        // An unmodified server is asked once.
        assert_eq!(found(4_294_967, 300).await, (300, 1));
        assert_eq!(found(60, 300).await, (60, 0));
        assert_eq!(found(4_294_967, u64::MAX).await, (4_294_967, 2));
        for limit in [301, 302, 3_600, 86_400, 4_294_966] {
            let (longest, asked) = found(4_294_967, limit).await;
            assert_eq!(longest, limit);
            assert!(asked < 30, "{asked}");
        }
        assert_eq!(found(3_600, 600).await.0, 600);
    }
}
