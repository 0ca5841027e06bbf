//! What is finished whether or not anybody still waits for it.
//!
//! Granting and revoking take several steps, between which a session has no lease, or a lease no session.
//! A call is dropped at any of them when its client gives up, so the steps are not the call's: they are a
//! task of their own, which the call waits for. Each step has its own bound in time, and so has the task.

use super::LeaseError;
use std::panic::resume_unwind;

/// Does `work` to its end, also when the caller goes away.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, LeaseError>> + Send + 'static,
) -> Result<T, LeaseError> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is on its way out.
            Err(_) => Err(LeaseError::Stopped),
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::fake::{FakeLog, keyspace_after, outcome};
    use crate::backend::local::sessions::LocalSessions;
    use crate::backend::{Log, ProposeError, Sessions};
    use crate::keyspace::command::{Command, LeaseGrant, Op, Outcome, Reply};
    use crate::keyspace::error::Refusal;
    use crate::lease::Leases;
    use crate::lease::times::Times;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Poll;
    use std::time::Duration;
    use tokio::task::yield_now;

    /// More polls than any request here takes.
    const POLLS: usize = 12;
    const HOUR: Duration = Duration::from_secs(3600);

    /// A log that takes its time.
    struct Slow(Arc<FakeLog>);

    impl Log for Slow {
        async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
            yield_now().await;
            let answer = self.0.propose(command).await;
            yield_now().await;
            answer
        }

        async fn barrier(&self) -> Result<(), ProposeError> {
            yield_now().await;
            Ok(())
        }

        async fn compacted(&self, _: i64) -> Result<(), ProposeError> {
            Ok(())
        }

        fn pending(&self) -> u64 {
            0
        }
    }

    /// Polls a request so many times, drops it, and lets go on whatever goes on.
    async fn given_up_after(polls: usize, request: impl Future) {
        {
            let mut request = pin!(request);
            for _ in 0..polls {
                if poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_ready())).await {
                    break;
                }
                yield_now().await;
            }
        }
        for _ in 0..10 * POLLS {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_grant_whose_client_gives_up_leaves_no_session_without_a_lease() {
        for polls in 1..POLLS {
            let refused = Outcome { reply: Err(Refusal::LeaseExists), revision: 1, changed: false };
            let log = FakeLog::new([Ok(refused)]);
            let sessions = Arc::new(LocalSessions::new(HOUR));
            let (slow, times) = (Arc::new(Slow(log.clone())), Arc::new(Times::new()));
            let leases = Leases::new(slow, sessions.clone(), keyspace_after([]), 1, times);
            let leases = Arc::new(leases);
            given_up_after(polls, leases.grant(7, 3600, None)).await;
            assert_eq!(log.asked().len(), 1, "given up after {polls}");
            assert!(sessions.is_empty(), "given up after {polls}");
        }
    }

    #[tokio::test]
    async fn a_revoke_whose_client_gives_up_ends_the_session_too() {
        for polls in 1..POLLS {
            let log = FakeLog::new([Ok(outcome(Reply::Lease(true)))]);
            let sessions = Arc::new(LocalSessions::new(HOUR));
            let session = sessions.create(HOUR).await.expect("room").id;
            let grant = LeaseGrant { id: 7, ttl: 3600, session, marker: String::new() };
            let reader = keyspace_after([Op::LeaseGrant(grant)]);
            let (slow, times) = (Arc::new(Slow(log.clone())), Arc::new(Times::new()));
            let leases = Arc::new(Leases::new(slow, sessions.clone(), reader, 1, times));
            given_up_after(polls, leases.revoke(7, None)).await;
            assert_eq!(log.asked().len(), 1, "given up after {polls}");
            assert!(sessions.is_empty(), "given up after {polls}");
        }
    }
}
