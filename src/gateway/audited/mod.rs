//! The services with an audit log before them: what [`Audited`] wraps is called as it is, and what
//! came of each call becomes a line.
//!
//! Without an audit log nothing is wrapped. What a line says about a request is in [`subject`]. A line
//! is queued before the client is answered; a call that is given up before that, by its client or at
//! its deadline, gets a line that says `Canceled`, since what it asked for may still be done.

mod services;
mod subject;

use super::Context;
use crate::audit::AuditLog;
use crate::audit::line::{Line, Subject};
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
pub(crate) use subject::{Answered, Asked, Nothing};
use tonic::{Code, Request, Response, Status};

/// Where a connection's client is, for people: `127.0.0.1:1234`, or `unix`. Among the extensions of
/// each request if there is an audit log, and else of those that the log may have a line for
/// ([`concerns`](super::told::concerns)).
#[derive(Clone, Debug)]
pub struct ClientAddress(pub Arc<str>);

/// Knows users by what they show.
pub trait Who: Send + Sync + 'static {
    /// The user, if authentication is on and the credentials are somebody's.
    fn user(&self, credentials: &Credentials) -> Option<String>;
}

impl<L: Log, S: Sessions> Who for Context<L, S> {
    fn user(&self, credentials: &Credentials) -> Option<String> {
        let state = self.reader.view().auth();
        if !state.enabled {
            return None;
        }
        self.auth.identify(credentials, &state).ok()?.map(|authority| authority.user)
    }
}

/// Makes lines.
#[derive(Clone)]
pub struct Auditor {
    log: Arc<AuditLog>,
    who: Arc<dyn Who>,
}

/// Where requests come from.
#[derive(Clone, Debug)]
pub struct Origin {
    credentials: Credentials,
    client: Option<ClientAddress>,
}

impl Origin {
    /// That of a request.
    pub fn of<T>(request: &Request<T>) -> Self {
        let client = request.extensions().get::<ClientAddress>().cloned();
        Self { credentials: Credentials::of(request), client }
    }
}

impl Auditor {
    /// Writes to `log`; `who` knows users.
    pub fn new(log: Arc<AuditLog>, who: Arc<dyn Who>) -> Self {
        Self { log, who }
    }

    /// Does what a unary call asks for, and notes it.
    pub(crate) async fn unary<Q: Asked, R: Answered, F>(
        &self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<Response<R>, Status>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let entry = self.begin(method, &request);
        let result = call(request).await;
        entry.end(result.as_ref().map(Response::get_ref)).await;
        result
    }

    /// The same for a call whose answer has no header, or is a stream: noted when that begins.
    pub(crate) async fn stream<Q: Asked, R, F>(
        &self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<Response<R>, Status>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let entry = self.begin(method, &request);
        let result = call(request).await;
        entry.end(result.as_ref().map(|_| &Nothing)).await;
        result
    }

    /// Notes what came of one request within a stream of them.
    pub(crate) async fn within<Q: Asked, R: Answered>(
        &self,
        method: &'static str,
        origin: &Origin,
        asked: Q,
        result: Result<&R, &Status>,
    ) {
        self.entry(method, origin.clone(), asked).end(result).await;
    }

    fn begin<Q: Asked>(&self, method: &'static str, request: &Request<Q>) -> Entry<'_, Q> {
        self.entry(method, Origin::of(request), request.get_ref().kept())
    }

    fn entry<Q: Asked>(&self, method: &'static str, origin: Origin, asked: Q) -> Entry<'_, Q> {
        #[allow(clippy::disallowed_methods, reason = "a line tells the time of day")]
        let time = SystemTime::now();
        // Before the call: it may be the one that makes the token worthless. Reads are looked at when
        // they turn out to need a line.
        let needed = asked.changes() || self.log.wants_reads();
        let user = if needed { self.who.user(&origin.credentials) } else { None };
        let started = Instant::now();
        Entry { auditor: self, method, origin, asked: Some(asked), user, time, started }
    }
}

/// A call that is under way.
struct Entry<'a, Q: Asked> {
    auditor: &'a Auditor,
    method: &'static str,
    origin: Origin,
    /// Until it has its line.
    asked: Option<Q>,
    user: Option<String>,
    time: SystemTime,
    started: Instant,
}

impl<Q: Asked> Entry<'_, Q> {
    async fn end<R: Answered>(mut self, result: Result<&R, &Status>) {
        let Some(asked) = self.asked.take() else { return };
        if result.is_ok() && !asked.changes() && !self.auditor.log.wants_reads() {
            return;
        }
        if self.user.is_none() {
            // Perhaps it was not yet known here.
            self.user = self.auditor.who.user(&self.origin.credentials);
        }
        let mut subject = asked.subject();
        let line = match result {
            Ok(answer) => {
                answer.tell(&mut subject);
                self.line(&subject, Code::Ok, "", answer.revision())
            }
            Err(status) => self.line(&subject, status.code(), status.message(), None),
        };
        self.auditor.log.write(line).await;
    }

    fn line(&self, subject: &Subject, code: Code, error: &str, revision: Option<i64>) -> String {
        let line = Line {
            time: self.time,
            user: self.user.as_deref(),
            certificate: self.origin.credentials.certificate_name(),
            client: self.origin.client.as_ref().map(|client| &*client.0),
            method: self.method,
            subject,
            code,
            error,
            revision,
            took: self.started.elapsed(),
        };
        line.render()
    }
}

impl<Q: Asked> Drop for Entry<'_, Q> {
    fn drop(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        if asked.changes() || self.auditor.log.wants_reads() {
            let given_up = "given up before it was answered; it may still be done";
            let line = self.line(&asked.subject(), Code::Cancelled, given_up, None);
            self.auditor.log.write_now(line);
        }
    }
}

/// A service whose calls are noted.
pub struct Audited<S> {
    service: S,
    auditor: Auditor,
}

impl<S> Audited<S> {
    /// Notes the calls of `service`.
    pub fn new(service: S, auditor: Auditor) -> Self {
        Self { service, auditor }
    }
}
