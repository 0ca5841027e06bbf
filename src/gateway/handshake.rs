//! TLS handshakes: beside the accept loop, a bounded number at a time, each for a bounded time.
//!
//! A client that says nothing, or half of what it should, costs one of the places for as long as no
//! one else wants it: when all are taken, whoever has been at it longest makes room.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::listen::{Metered, Security};
use crate::auth::CertificateName;
use crate::telemetry::Metrics;
use crate::tls::certificate::common_name;
use crate::tls::server::ServerTls;

/// How long a handshake may take, as in etcd.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes in progress; each holds some tens of kilobytes.
const IN_PROGRESS_MAX: usize = 1024;
/// How long a handshake may take even if others wait for its place.
const GRACE: Duration = Duration::from_millis(500);
/// With which byte a TLS connection begins.
const HANDSHAKE_RECORD: u8 = 0x16;
/// Lines about failed handshakes, each second.
const LINES_PER_SECOND: u32 = 10;

/// The places for handshakes in progress.
#[derive(Default)]
struct Places {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    /// By age; whoever's sender is dropped has to go.
    by_age: BTreeMap<u64, (Instant, oneshot::Sender<Infallible>)>,
    next: u64,
}

/// A place among the handshakes in progress; free again when it's dropped.
pub struct Place {
    id: u64,
    places: Arc<Places>,
    evicted: oneshot::Receiver<Infallible>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().by_age.remove(&self.id);
        self.places.freed.notify_one();
    }
}

impl Places {
    /// Waits for a place: not longer than [`GRACE`], after which the oldest handshake is ended.
    async fn take(self: &Arc<Self>) -> Place {
        loop {
            match self.try_take(Instant::now()) {
                Ok(place) => return place,
                // Whether one was freed or the time is over: it is worth another try.
                Err(until) => drop(tokio::time::timeout_at(until, self.freed.notified()).await),
            }
        }
    }

    /// A place, or when it is worth another try.
    fn try_take(self: &Arc<Self>, now: Instant) -> Result<Place, Instant> {
        let mut taken = self.taken.lock();
        if taken.by_age.len() >= IN_PROGRESS_MAX
            && let Some(oldest) = taken.by_age.first_entry()
        {
            let until = oldest.get().0 + GRACE;
            if until > now {
                return Err(until);
            }
            oldest.remove();
        }
        let id = taken.next;
        taken.next += 1;
        let (held, evicted) = oneshot::channel();
        taken.by_age.insert(id, (now, held));
        drop(taken);
        Ok(Place { id, places: self.clone(), evicted })
    }
}

/// The handshakes of a server.
pub struct Handshakes {
    tls: Arc<ServerTls>,
    metrics: Arc<Metrics>,
    places: Arc<Places>,
    lines: Mutex<Lines>,
}

/// What a connection turned out to be.
pub enum Opened {
    /// As it came.
    Plain(Metered),
    /// Over TLS, with the name in the client's certificate if it names a user.
    Tls(Box<TlsStream<Metered>>, Option<CertificateName>),
}

impl Handshakes {
    /// None in progress yet.
    pub fn new(tls: Arc<ServerTls>, metrics: Arc<Metrics>) -> Arc<Handshakes> {
        Arc::new(Handshakes {
            tls,
            metrics,
            places: Arc::default(),
            lines: Mutex::new(Lines::new()),
        })
    }

    /// Waits for a place for one more handshake: half a second at most.
    pub async fn place(&self) -> Place {
        self.places.take().await
    }

    /// Makes a connection what the listener says it should be. `None`: it is closed, and that has
    /// been said where it is worth saying.
    pub async fn open(
        &self,
        connection: Metered,
        security: Security,
        place: Place,
    ) -> Option<Opened> {
        let peer = connection.connection().peer();
        let mut place = place;
        let why = tokio::select! {
            biased;
            opened = self.shake(connection, security) => match opened {
                Ok(opened) => return opened,
                Err(error) => error.to_string(),
            },
            _ = &mut place.evicted => "given up for others that waited".to_owned(),
            () = tokio::time::sleep(TIMEOUT) => format!("not done within {TIMEOUT:?}"),
        };
        self.failed(&peer, &why);
        None
    }

    async fn shake(&self, connection: Metered, security: Security) -> io::Result<Option<Opened>> {
        match connection.connection().first_byte().await? {
            Some(HANDSHAKE_RECORD) => {}
            // Somebody looked whether the port is open.
            None => return Ok(None),
            Some(_) if security == Security::Either => {
                return Ok(Some(Opened::Plain(connection)));
            }
            Some(_) => {
                // What has arrived is taken in: otherwise the client would be told of a reset
                // instead of the end.
                let mut connection = connection;
                let _ = connection.read(&mut [0; 4096]).await;
                return Err(io::Error::other("the client does not speak TLS"));
            }
        }
        let stream = TlsAcceptor::from(self.tls.current()).accept(connection).await?;
        let name = self.tls.names_users().then(|| stream.get_ref().1.peer_certificates()).flatten();
        let name = name.and_then(|chain| chain.first()).map(|own| common_name(own));
        Ok(Some(Opened::Tls(Box::new(stream), name.map(|name| CertificateName(name.into())))))
    }

    fn failed(&self, peer: &str, error: &str) {
        self.metrics.tls.failed_handshakes_total.inc();
        let Some(left_out) = self.lines.lock().one_more(Instant::now()) else { return };
        tracing::warn!(
            remote_addr = peer,
            error,
            left_out,
            "rejected connection on client endpoint"
        );
    }
}

/// Bounds the lines that strangers can cause in the log.
struct Lines {
    second: Instant,
    written: u32,
    left_out: u64,
}

impl Lines {
    fn new() -> Lines {
        Lines { second: Instant::now(), written: 0, left_out: 0 }
    }

    /// Whether to write another one; if so, how many have not been written since the last.
    fn one_more(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.written) = (now, 0);
        }
        if self.written >= LINES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_handshake_makes_room_for_a_new_one() {
        let places = Arc::new(Places::default());
        let mut taken = Vec::new();
        for _ in 0..IN_PROGRESS_MAX {
            taken.push(places.take().await);
        }
        let started = Instant::now();
        let _next = places.take().await;
        let waited = started.elapsed();
        assert!(waited >= GRACE && waited < 2 * GRACE, "{waited:?}");
        assert_eq!(taken[0].evicted.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(taken[1].evicted.try_recv(), Err(TryRecvError::Empty));
        // The one that had to go frees nothing any more, the next one does.
        taken.remove(0);
        assert_eq!(places.taken.lock().by_age.len(), IN_PROGRESS_MAX);
        taken.remove(0);
        places.take().await;
        assert_eq!(started.elapsed(), waited);
    }

    #[test]
    fn a_flood_is_not_all_in_the_log() {
        let mut lines = Lines::new();
        let start = lines.second;
        let written = (0..100).filter(|_| lines.one_more(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(lines.one_more(start + Duration::from_secs(1)), Some(90));
        assert_eq!(lines.one_more(start + Duration::from_secs(1)), Some(0));
    }
}
