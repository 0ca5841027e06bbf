//! The lives of a process: everything that serves runs on one runtime, and can be replaced as a whole.
//!
//! A gateway that stood still while the log was trimmed holds an old copy of the keyspace, with clients,
//! watchers and tasks on it. It lets go of all that and begins again, in the same process, with what a
//! restart would begin with. Nothing of one life goes on in the next: [`Life::end`] waits for every
//! thread. What outlasts a life is with the caller: the directory's lock, the listening sockets, and the
//! signals that end the process, which have a thread of their own.

use crate::backend::Halt;
use std::io;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How long the threads of a life may take to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// A life that lasted as long as this was a good one.
const STEADY: Duration = Duration::from_secs(10);
/// The pause after the second short life in a row; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A runtime, with all that runs on it.
pub struct Life {
    runtime: Runtime,
    begun: Instant,
}

impl Life {
    /// Starts the threads.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin() -> io::Result<Life> {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        Ok(Life { runtime, begun: Instant::now() })
    }

    /// Runs what there is to do. Tasks that it has spawned may go on after it.
    pub fn run<F: Future>(&self, what: F) -> F::Output {
        self.runtime.block_on(what)
    }

    /// How long it has lasted.
    pub fn lasted(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Drops all tasks and waits until no thread runs any more.
    ///
    /// # Errors
    /// Some thread does not end: another life must not begin beside it.
    pub fn end(self) -> Result<(), String> {
        self.end_within(PATIENCE)
    }

    fn end_within(self, patience: Duration) -> Result<(), String> {
        let begun = Instant::now();
        self.runtime.shutdown_timeout(patience);
        // It comes back before its time only if every thread has ended.
        if begun.elapsed() < patience {
            return Ok(());
        }
        Err(format!("cannot start over: some thread still runs after {} s", patience.as_secs()))
    }

    /// Lets go of it where the process ends: nobody waits for tasks that hold a closed connection.
    pub fn leave(self) {
        self.runtime.shutdown_background();
    }
}

/// What is known of the lives so far.
#[derive(Debug, Default)]
pub struct Past {
    /// How often the process has started over.
    pub times: u64,
    /// How long to wait before the next life joins.
    pub pause: Duration,
    // Lives in a row that ended soon.
    short: u32,
    // Where the log began when the last life ended.
    trimmed_below: u64,
}

impl Past {
    /// Notes that a life has ended, left behind by the log. Then there may be another one.
    ///
    /// # Errors
    /// It ended for another reason, or starting over has not helped: the same entries are missing again.
    pub fn left_behind(&mut self, halt: &Halt, lasted: Duration) -> Result<(), String> {
        let now = halt.trimmed_below.ok_or_else(|| halt.reason.clone())?;
        if now <= self.trimmed_below {
            return Err(format!("{}; starting over has not helped", halt.reason));
        }
        self.trimmed_below = now;
        self.times += 1;
        self.short = if lasted < STEADY { self.short + 1 } else { 0 };
        self.pause = match self.short {
            0 | 1 => Duration::ZERO,
            more => LONGEST_PAUSE.min(FIRST_PAUSE * (1 << (more - 2).min(8))),
        };
        Ok(())
    }
}

/// The first signal that asked the process to end, by its name for the log.
pub type Stop = watch::Receiver<Option<&'static str>>;

/// Takes SIGTERM and SIGINT from here on, whatever becomes of any life.
///
/// # Errors
/// What the system says.
pub fn stop_signals() -> io::Result<Stop> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let (tell, stop) = watch::channel(None);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            let name = tokio::select! {
                _ = terminate.recv() => "terminated",
                _ = interrupt.recv() => "interrupt",
            };
            tell.send_replace(Some(name));
            // Whoever looks later has to find it.
            tell.closed().await;
        });
    })?;
    Ok(stop)
}

/// Ends when the process has been asked to end, with the signal's name.
pub async fn stopped(stop: &Stop) -> &'static str {
    let mut stop = stop.clone();
    let told = stop.wait_for(Option::is_some).await.ok().and_then(|name| *name);
    match told {
        Some(name) => name,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn halt(at: u64) -> Halt {
        Halt { reason: "behind".into(), trimmed_below: Some(at) }
    }

    #[test]
    fn short_lives_are_followed_by_longer_and_longer_pauses_up_to_a_bound() {
        let mut past = Past::default();
        let short = STEADY / 2;
        let pauses: Vec<u64> = (1..=7)
            .map(|at| {
                past.left_behind(&halt(at), short).expect("it goes on");
                past.pause.as_secs()
            })
            .collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 10, 10]);
        past.left_behind(&halt(8), STEADY).expect("it goes on");
        assert_eq!((past.pause, past.times), (Duration::ZERO, 8));
        for at in 9..200 {
            past.left_behind(&halt(at), short).expect("it goes on");
        }
        assert_eq!(past.pause, LONGEST_PAUSE);
    }

    #[test]
    fn what_starting_over_does_not_help_is_the_end() {
        let mut past = Past::default();
        let other = Halt::from("a disk".to_owned());
        assert_eq!(past.left_behind(&other, STEADY), Err("a disk".to_owned()));
        past.left_behind(&halt(7), STEADY).expect("it goes on");
        let again = past.left_behind(&halt(7), STEADY).expect_err("no progress");
        assert!(again.contains("behind") && again.contains("has not helped"), "{again}");
        assert_eq!(past.times, 1);
    }

    #[test]
    fn the_end_of_a_life_is_that_of_its_tasks() {
        struct Told(Arc<AtomicBool>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let life = Life::begin().expect("threads");
        let told = Told(dropped.clone());
        life.run(async {
            tokio::spawn(async move {
                let _told = told;
                std::future::pending::<()>().await;
            });
        });
        life.end().expect("nothing holds it");
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[test]
    fn a_life_that_does_not_end_is_noticed() {
        let (free, held) = std::sync::mpsc::channel::<()>();
        let life = Life::begin().expect("threads");
        life.run(async {
            tokio::task::spawn_blocking(move || held.recv());
        });
        let error = life.end_within(Duration::from_millis(100)).expect_err("it still runs");
        assert!(error.contains("still runs"), "{error}");
        drop(free);
    }
}
