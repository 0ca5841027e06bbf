//! Sessions of the shard: made, renewed, inspected and closed by anyone who knows the id.
//!
//! Nothing here renews a session by itself. An id is the offset of a log entry: it can be guessed,
//! and a shard whose log was lost gives the same ids again.

use std::time::Duration;

use leaseway_proto::oxia::{
    CloseSessionRequest, CloseSessionResponse, CreateSessionRequest, CreateSessionResponse,
    GetSessionRequest, GetSessionResponse, KeepAliveResponse, ListRequest, SessionHeartbeat,
};

use super::Client;
use super::error::{Error, Kind};
use super::key::{INTERNAL, KeyRange};
use super::leader::{Epoch, Leader};
use super::reads::{At, Keys};
use super::wire::{CLOSE_SESSION, CREATE_SESSION, GET_SESSION, KEEP_ALIVE};

/// What a server of the proposed extension knows of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// How long it lives without a heartbeat.
    pub timeout: Duration,
    /// How long it has left; the whole timeout again after a change of leader.
    pub remaining: Duration,
    /// Whatever its creator wrote.
    pub identity: String,
}

impl Client {
    /// Starts a session that ends `timeout` after its last heartbeat. When the answer is lost, a
    /// session may have been made that nobody knows of; it ends by itself.
    ///
    /// # Errors
    /// [`Kind::SessionTimeout`] when the timeout is below 2 s or above the server's maximum (5 min
    /// in an unmodified server), and others.
    pub async fn create_session(
        &self,
        timeout: Duration,
        identity: &str,
    ) -> Result<At<i64>, Error> {
        let session_timeout_ms = u32::try_from(timeout.as_millis())
            .map_err(|_| Error::new(Kind::SessionTimeout, "oxia: the timeout is too long"))?;
        let leader = self.leader()?;
        let request = CreateSessionRequest {
            shard: leader.shard,
            session_timeout_ms,
            client_identity: identity.to_owned(),
        };
        let made = leader.control.unary::<_, CreateSessionResponse>(&CREATE_SESSION, request).await;
        let made = made.map_err(|error| leader.note(error))?;
        Ok(At { epoch: leader.epoch, value: made.session_id })
    }

    /// One heartbeat; returns which leader took it. That alone proves nothing: a deposed leader
    /// takes heartbeats too, and so does one that is about to write the session's end. Only a put
    /// that was sent in the same epoch after this answer, and committed, proves that it counted.
    ///
    /// # Errors
    /// [`Kind::SessionNotFound`] once it has ended, as far as this leader knows.
    pub async fn keep_alive(&self, session: i64) -> Result<Epoch, Error> {
        let leader = self.leader()?;
        let request = SessionHeartbeat { shard: leader.shard, session_id: session };
        let beat = leader.control.unary::<_, KeepAliveResponse>(&KEEP_ALIVE, request).await;
        beat.map_err(|error| leader.note(error))?;
        Ok(leader.epoch)
    }

    /// Ends a session and deletes its records. Closing one that isn't there is fine. The id may be that of
    /// another session by now, unless that is ruled out: see [`Client::close_session_in`].
    ///
    /// # Errors
    /// Whatever leaves open whether it has ended.
    pub async fn close_session(&self, session: i64) -> Result<Epoch, Error> {
        self.close_at(&*self.leader()?, session).await
    }

    /// As [`Client::close_session`], while the leader of this epoch is in use: the request reaches the
    /// process that led the shard in it, or none.
    ///
    /// # Errors
    /// [`Kind::LeaderChanged`] when the epoch is over; and whatever leaves open whether it has ended.
    pub async fn close_session_in(&self, epoch: Epoch, session: i64) -> Result<Epoch, Error> {
        self.close_at(&*self.leader_of(epoch)?, session).await
    }

    async fn close_at(&self, leader: &Leader, session: i64) -> Result<Epoch, Error> {
        let request = CloseSessionRequest { shard: leader.shard, session_id: session };
        match leader.control.unary::<_, CloseSessionResponse>(&CLOSE_SESSION, request).await {
            // Servers up to 0.16 say OK, newer ones that it isn't there.
            Ok(CloseSessionResponse {}) => Ok(leader.epoch),
            Err(error) if error.kind == Kind::SessionNotFound => Ok(leader.epoch),
            Err(error) => Err(leader.note(error)),
        }
    }

    /// What is known of a session, without renewing it; `None` where the server doesn't offer to
    /// tell. A server is asked once, until the leader changes.
    ///
    /// # Errors
    /// [`Kind::SessionNotFound`] once it has ended, and others.
    pub async fn get_session(&self, session: i64) -> Result<At<Option<SessionInfo>>, Error> {
        let leader = self.leader()?;
        let value = self.info(&leader, session).await?;
        Ok(At { epoch: leader.epoch, value })
    }

    async fn info(&self, leader: &Leader, session: i64) -> Result<Option<SessionInfo>, Error> {
        if !leader.tells_sessions() {
            return Ok(None);
        }
        let request = GetSessionRequest { shard: leader.shard, session_id: session };
        let told = leader.control.unary::<_, GetSessionResponse>(&GET_SESSION, request).await;
        match told {
            Ok(told) => Ok(Some(SessionInfo {
                timeout: Duration::from_millis(told.session_timeout_ms.into()),
                remaining: Duration::from_millis(told.remaining_ms.try_into().unwrap_or(0)),
                identity: told.client_identity,
            })),
            Err(error) if error.kind == Kind::Unimplemented => {
                leader.tells_no_sessions();
                Ok(None)
            }
            Err(error) => Err(leader.note(error)),
        }
    }

    /// The keys attached to a session that lie within a range, in order.
    ///
    /// Where the server doesn't offer to tell, they are taken from its own index, which it keeps
    /// for the session's end; then the whole of it is read, and sorted here.
    ///
    /// # Errors
    /// [`Kind::SessionNotFound`] where the server tells that, [`Kind::TooLarge`] above `most` keys,
    /// and others. From the index, the keys of a session that isn't there are simply none.
    pub async fn list_session_keys(
        &self,
        session: i64,
        range: &KeyRange,
        most: usize,
    ) -> Result<At<Vec<String>>, Error> {
        let leader = self.leader()?;
        // A server that doesn't know the filter would skip it and list everything, so it's only
        // used where the other half of the extension has just been answered.
        if self.info(&leader, session).await?.is_some() {
            let request = ListRequest {
                shard: Some(leader.shard),
                start_inclusive: range.start().to_owned(),
                end_exclusive: range.end().to_owned(),
                include_internal_keys: false,
                session_id: Some(session),
            };
            let value = Keys::new(leader.clone(), request).all(most).await?;
            return Ok(At { epoch: leader.epoch, value });
        }
        let index = KeyRange::children_of(&session_row(session))?;
        let keys = self.list(index)?;
        let epoch = keys.epoch();
        let all = keys.all(most).await?;
        let mut value: Vec<String> = all
            .iter()
            .filter_map(|key| key.rsplit_once('/').and_then(|(_, escaped)| unescape(escaped)))
            .filter(|key| range.start() <= key.as_str() && key.as_str() < range.end())
            .collect();
        value.sort_unstable();
        Ok(At { epoch, value })
    }

    /// The ids of all sessions of the shard, whichever keyspace they're used by, in order.
    ///
    /// # Errors
    /// [`Kind::TooLarge`] above `most`, and others.
    pub async fn list_sessions(&self, most: usize) -> Result<At<Vec<i64>>, Error> {
        let keys = self.list(KeyRange::children_of(&sessions_directory())?)?;
        let epoch = keys.epoch();
        let value = keys.all(most).await?.iter().filter_map(|key| session_of_row(key)).collect();
        Ok(At { epoch, value })
    }
}

fn sessions_directory() -> String {
    format!("{INTERNAL}/session")
}

/// The server's record of a session; its index lies below.
fn session_row(session: i64) -> String {
    format!("{}/{session:016x}", sessions_directory())
}

fn session_of_row(key: &str) -> Option<i64> {
    let digits = key.strip_prefix(&sessions_directory())?.strip_prefix('/')?;
    (digits.len() == 16).then(|| i64::from_str_radix(digits, 16).ok())?
}

/// Undoes the escaping of a URL's path: `%2F` is `/`.
fn unescape(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_servers_rows() {
        assert_eq!(session_row(255), "__oxia/session/00000000000000ff");
        assert_eq!(session_of_row("__oxia/session/00000000000000ff"), Some(255));
        for other in ["__oxia/session/ff", "__oxia/session/00000000000000fg", "ks/x"] {
            assert_eq!(session_of_row(other), None, "{other}");
        }
    }

    #[test]
    fn undoes_the_escaping() {
        assert_eq!(unescape("ks%2Fmarker%2Fa+b%25").as_deref(), Some("ks/marker/a+b%"));
        assert_eq!(unescape("gr%C3%BCn").as_deref(), Some("grün"));
        for broken in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(unescape(broken), None, "{broken}");
        }
    }
}
