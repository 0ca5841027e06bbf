//! Local sessions: deadlines in memory.
//!
//! A heartbeat only moves a session's deadline. The heap of timers is lazy: it holds a lower bound
//! of each session's deadline, and a timer that fires too early is put back at the right time. So a session
//! has one timer that counts, however often it is renewed or started again. Timers of sessions that were
//! closed are left in the heap, until they are more than those that count.
//!
//! When this process itself stood still (stopped by a signal, a frozen machine), nobody could have
//! renewed anything. Such a gap is noticed by its own heartbeat being late, and sessions that ran
//! out within it start again in full, once, unless they are renewed in between.

use crate::backend::{Created, Duty, Ended, SessionError, SessionId, SessionInfo, Sessions};
use crate::seams::Clock;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How often the passing of time is looked at.
const PULSE: Duration = Duration::from_millis(200);
/// A pulse this late means that the process stood still.
const GAP: Duration = Duration::from_millis(1500);
/// Timers that may be left of closed sessions, however few sessions there are.
const LEFT: usize = 64;

#[derive(Debug)]
struct Session {
    timeout: Duration,
    deadline: Instant,
    // When its timer fires: not after its deadline. Others of the same id do not count.
    armed: Instant,
    // Was given another full timeout after a gap and has not been renewed since.
    spared: bool,
}

#[derive(Debug)]
struct Inner {
    sessions: HashMap<SessionId, Session>,
    timers: BinaryHeap<Reverse<(Instant, SessionId)>>,
    seen: Instant,
}

/// Sessions of the embedded backend.
#[derive(Debug)]
pub struct LocalSessions {
    inner: Mutex<Inner>,
    earlier: Notify,
    maximum: Duration,
    clock: Clock,
}

impl LocalSessions {
    /// No sessions yet; timeouts are limited to `maximum`.
    pub fn new(maximum: Duration) -> Self {
        Self::measured_by(Clock::default(), maximum)
    }

    /// No sessions yet; their time is that of `clock`.
    pub fn measured_by(clock: Clock, maximum: Duration) -> Self {
        let inner =
            Inner { sessions: HashMap::new(), timers: BinaryHeap::new(), seen: clock.now() };
        Self { inner: Mutex::new(inner), earlier: Notify::new(), maximum, clock }
    }

    /// Starts a session that existed before the process did, with `remaining` of its time.
    pub fn restore(&self, id: SessionId, timeout: Duration, remaining: Duration) {
        self.insert(id, timeout, remaining);
    }

    fn insert(&self, id: SessionId, timeout: Duration, remaining: Duration) {
        let mut inner = self.inner.lock();
        let deadline = self.clock.now() + remaining;
        let first = inner.timers.peek().is_none_or(|Reverse((next, _))| deadline < *next);
        let known = inner.sessions.get(&id).map(|session| session.armed);
        let armed = known.filter(|armed| *armed <= deadline);
        if armed.is_none() {
            inner.timers.push(Reverse((deadline, id)));
        }
        let armed = armed.unwrap_or(deadline);
        inner.sessions.insert(id, Session { timeout, deadline, armed, spared: false });
        inner.tidy();
        drop(inner);
        if first {
            self.earlier.notify_one();
        }
    }

    /// What is known of a living session.
    pub fn look(&self, id: SessionId) -> Option<SessionInfo> {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        inner.observe(now);
        let session = inner.sessions.get(&id).filter(|session| session.deadline > now)?;
        Some(SessionInfo { timeout: session.timeout, remaining: session.deadline - now })
    }

    /// Ends a session without a word.
    pub fn drop(&self, id: SessionId) {
        let mut inner = self.inner.lock();
        inner.sessions.remove(&id);
        inner.tidy();
    }

    /// Number of living sessions.
    pub fn len(&self) -> usize {
        self.inner.lock().sessions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    /// Notes that time has passed up to `now`; after a gap, spares what ran out within it.
    fn observe(&mut self, now: Instant) {
        let before = self.seen;
        self.seen = before.max(now);
        if now.saturating_duration_since(before) < GAP {
            return;
        }
        for session in self.sessions.values_mut() {
            if session.deadline > before && session.deadline <= now && !session.spared {
                session.deadline = now + session.timeout;
                session.spared = true;
            }
        }
    }

    /// Makes the timers anew when most of them do not count, so that they take no more memory than the
    /// sessions, and each change a constant time on average.
    fn tidy(&mut self) {
        if self.timers.len() <= 2 * self.sessions.len() + LEFT {
            return;
        }
        let sessions = self.sessions.iter_mut().map(|(id, session)| {
            session.armed = session.deadline;
            Reverse((session.deadline, *id))
        });
        self.timers = sessions.collect();
    }

    fn take_expired(&mut self, now: Instant, most: usize) -> Vec<SessionId> {
        let mut ended = Vec::new();
        while ended.len() < most {
            let Some(&Reverse((due, id))) = self.timers.peek() else { break };
            if due > now {
                break;
            }
            self.timers.pop();
            match self.sessions.get_mut(&id) {
                Some(session) if session.armed != due => {}
                None => {}
                Some(session) if session.deadline > now => {
                    session.armed = session.deadline;
                    self.timers.push(Reverse((session.deadline, id)));
                }
                Some(_) => {
                    self.sessions.remove(&id);
                    ended.push(id);
                }
            }
        }
        ended
    }
}

impl Sessions for LocalSessions {
    fn maximum(&self) -> Duration {
        self.maximum
    }

    fn longest(&self) -> Duration {
        self.maximum
    }

    fn shared(&self) -> bool {
        false
    }

    fn turn(&self, _: i64) -> Duration {
        Duration::ZERO
    }

    fn duty(&self) -> Option<watch::Receiver<Duty>> {
        None
    }

    async fn gap(&self) {
        std::future::pending().await
    }

    async fn markers(&self) -> Result<Vec<String>, SessionError> {
        Ok(Vec::new())
    }

    fn session_of(&self, _: &str) -> Option<SessionId> {
        None
    }

    async fn discard(&self, _: String) -> Result<(), SessionError> {
        Ok(())
    }

    fn attends(&self) -> bool {
        true
    }

    fn settle(&self, _: bool) {}

    fn is_settled(&self) -> bool {
        true
    }

    async fn create(&self, timeout: Duration) -> Result<Created, SessionError> {
        if timeout > self.maximum {
            return Err(SessionError::TimeoutTooLong);
        }
        let id = loop {
            let id: SessionId = rand::random();
            if id != 0 && !self.inner.lock().sessions.contains_key(&id) {
                break id;
            }
        };
        self.insert(id, timeout, timeout);
        Ok(Created { id, marker: String::new() })
    }

    async fn keep_alive(&self, id: SessionId) -> Result<(), SessionError> {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        inner.observe(now);
        match inner.sessions.get_mut(&id) {
            Some(session) if session.deadline > now => {
                session.deadline = now + session.timeout;
                session.spared = false;
                Ok(())
            }
            _ => Err(SessionError::NotFound),
        }
    }

    async fn info(&self, id: SessionId) -> Result<Option<SessionInfo>, SessionError> {
        self.look(id).map(Some).ok_or(SessionError::NotFound)
    }

    async fn close(&self, id: SessionId, _: &str) -> Result<(), SessionError> {
        self.drop(id);
        Ok(())
    }

    async fn expired(&self, most: usize) -> Result<Vec<Ended>, SessionError> {
        loop {
            let next = {
                let mut inner = self.inner.lock();
                let now = self.clock.now();
                inner.observe(now);
                let ended = inner.take_expired(now, most.max(1));
                if !ended.is_empty() {
                    let named = |id| Ended { id, marker: String::new() };
                    return Ok(ended.into_iter().map(named).collect());
                }
                let pulse = now + PULSE;
                inner.timers.peek().map_or(pulse, |Reverse((due, _))| pulse.min(*due))
            };
            tokio::select! {
                biased;
                () = self.clock.sleep_until(next) => {}
                () = self.earlier.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sessions() -> LocalSessions {
        LocalSessions::new(100 * SECOND)
    }

    /// Lets `time` pass in steps that are no gap, with the pulse running.
    async fn pass(sessions: &LocalSessions, time: Duration) -> Vec<SessionId> {
        let end = Instant::now() + time;
        let mut ended = Vec::new();
        while Instant::now() < end {
            tokio::time::sleep(PULSE.min(end - Instant::now())).await;
            let mut inner = sessions.inner.lock();
            let now = Instant::now();
            inner.observe(now);
            ended.extend(inner.take_expired(now, usize::MAX));
        }
        ended
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_lives_as_long_as_it_is_renewed() {
        let sessions = sessions();
        let id = sessions.create(5 * SECOND).await.unwrap().id;
        assert!(pass(&sessions, 4 * SECOND).await.is_empty());
        sessions.keep_alive(id).await.unwrap();
        assert!(pass(&sessions, 4 * SECOND).await.is_empty());
        assert_eq!(sessions.look(id).unwrap().remaining, SECOND);
        assert_eq!(pass(&sessions, 2 * SECOND).await, [id]);
        assert_eq!(sessions.keep_alive(id).await, Err(SessionError::NotFound));
        assert!(sessions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn ends_are_told_once_in_order_and_in_portions() {
        let sessions = sessions();
        let mut expected = Vec::new();
        for seconds in 2..8 {
            expected.push(sessions.create(seconds * SECOND).await.unwrap().id);
        }
        let mut told = Vec::new();
        while told.len() < expected.len() {
            told.extend(sessions.expired(2).await.unwrap().into_iter().map(|ended| ended.id));
        }
        assert_eq!(told, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_is_silent_and_repeatable() {
        let sessions = sessions();
        let id = sessions.create(2 * SECOND).await.unwrap().id;
        sessions.close(id, "").await.unwrap();
        sessions.close(id, "").await.unwrap();
        assert!(pass(&sessions, 4 * SECOND).await.is_empty());
        assert!(sessions.inner.lock().timers.is_empty(), "the timer of a closed session goes too");
    }

    #[tokio::test(start_paused = true)]
    async fn timers_are_about_as_many_as_sessions() {
        let sessions = LocalSessions::new(Duration::MAX);
        let timers = || sessions.inner.lock().timers.len();
        let hour = 3600 * SECOND;
        for _ in 0..1000 {
            // As a lease that the gateways keep is renewed.
            sessions.restore(7, hour, hour);
            sessions.keep_alive(7).await.unwrap();
        }
        assert_eq!(timers(), 1);
        for _ in 0..1000 {
            let id = sessions.create(hour).await.unwrap().id;
            sessions.close(id, "").await.unwrap();
        }
        assert!(timers() <= 2 + LEFT, "{} timers", timers());
        assert_eq!(sessions.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_started_again_ends_when_it_was_told_last() {
        let sessions = sessions();
        for (first, second) in [(50, 5), (5, 50)] {
            sessions.restore(7, first * SECOND, first * SECOND);
            sessions.restore(7, second * SECOND, second * SECOND);
            sessions.restore(8, 60 * SECOND, 60 * SECOND);
            assert!(pass(&sessions, second * SECOND - PULSE).await.is_empty());
            assert_eq!(pass(&sessions, 2 * PULSE).await, [7]);
            assert_eq!(pass(&sessions, (62 - second) * SECOND).await, [8]);
        }
        assert!(sessions.inner.lock().timers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_spares_once() {
        let sessions = sessions();
        let id = sessions.create(5 * SECOND).await.unwrap().id;
        tokio::time::advance(60 * SECOND).await;
        sessions.keep_alive(id).await.expect("nobody could have renewed it");
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(sessions.look(id).unwrap().remaining, 5 * SECOND);
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(
            sessions.keep_alive(id).await,
            Err(SessionError::NotFound),
            "spared before and not renewed since"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn timeouts_are_bounded() {
        let error = sessions().create(101 * SECOND).await;
        assert_eq!(error, Err(SessionError::TimeoutTooLong));
    }
}
