//! Tasks and threads that a server can't do without: if one of them panics, that is told, and the process stops.
//!
//! A panic ends its own task or thread and nothing else. In what serves a single request that is as it should
//! be. But a server that has lost what compacts, or what reads the log, would go on half alive, and nobody
//! would hear of it but those who wait in vain.

use crate::backend::Halt;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Whom it is told. Clones tell the same.
#[derive(Clone)]
pub struct Vital {
    tell: Arc<dyn Fn(Halt) + Send + Sync>,
}

/// Nobody; the log only. For tools, which serve nobody, and tests.
impl Default for Vital {
    fn default() -> Self {
        Self::new(|halt| tracing::error!(reason = halt.reason, "a part has failed"))
    }
}

impl Vital {
    /// Tells `tell`, perhaps more than once.
    pub fn new(tell: impl Fn(Halt) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell) }
    }

    /// Tells the log and the receiver, which keeps the first reason.
    pub fn channel() -> (Self, watch::Receiver<Option<Halt>>) {
        let (told, failed) = watch::channel(None);
        let vital = Self::new(move |halt| {
            tracing::error!(reason = halt.reason, "a part of the server has failed");
            told.send_if_modified(|first: &mut Option<Halt>| {
                let news = first.is_none();
                first.get_or_insert(halt);
                news
            });
        });
        (vital, failed)
    }

    /// Tells that `what`, which has a name like "the watch hub", can't go on.
    pub fn failed(&self, what: &str, why: &str) {
        (self.tell)(format!("{what} {why}").into());
    }

    /// To be held by a thread until its end.
    pub fn guard(&self, what: &'static str) -> Guard {
        Guard { vital: self.clone(), what }
    }

    /// `task`, with a panic in it told as one of `what`.
    pub fn watched<F: Future>(
        &self,
        what: &'static str,
        task: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let guard = self.guard(what);
        async move {
            let _guard = guard;
            task.await
        }
    }

    /// Spawns a task, with a panic in it told as one of `what`.
    pub fn spawn<F>(&self, what: &'static str, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(self.watched(what, task))
    }
}

/// Tells of a panic when it is dropped by one.
pub struct Guard {
    vital: Vital,
    what: &'static str,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.vital.failed(self.what, "has panicked");
        }
    }
}

/// Ends with what a part failed for; never if none can any more.
pub async fn failed(told: &watch::Receiver<Option<Halt>>) -> Halt {
    let mut told = told.clone();
    let halt = told.wait_for(Option::is_some).await.ok().and_then(|halt| halt.clone());
    match halt {
        Some(halt) => halt,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn reason(told: &watch::Receiver<Option<Halt>>) -> Option<String> {
        told.borrow().as_ref().map(|halt| halt.reason.clone())
    }

    #[tokio::test]
    async fn a_panic_is_told_and_no_other_end() {
        let (vital, told) = Vital::channel();
        vital.spawn("one that is done", async {}).await.expect("no panic");
        let aborted = vital.spawn("one that is aborted", std::future::pending::<()>());
        aborted.abort();
        assert!(aborted.await.expect_err("aborted").is_cancelled());
        assert_eq!(reason(&told), None);

        let panics = vital.spawn("this task", async {
            tokio::task::yield_now().await;
            panic!("for a test");
        });
        let halt = tokio::time::timeout(PATIENCE, failed(&told)).await.expect("told");
        assert_eq!(halt, Halt::from("this task has panicked".to_owned()));
        assert!(panics.await.expect_err("it panics").is_panic());

        vital.failed("another part", "has failed as well");
        assert_eq!(reason(&told).as_deref(), Some("this task has panicked"), "the first counts");
    }

    #[test]
    fn a_thread_is_watched_by_a_guard() {
        let (vital, told) = Vital::channel();
        let guard = vital.guard("that thread");
        std::thread::spawn(move || drop(guard)).join().expect("no panic");
        assert_eq!(reason(&told), None);
        let guard = vital.guard("that thread");
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            panic!("for a test");
        });
        thread.join().expect_err("it panics");
        assert_eq!(reason(&told).as_deref(), Some("that thread has panicked"));
    }
}
