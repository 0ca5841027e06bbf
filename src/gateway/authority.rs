//! On whose behalf a request is done.
//!
//! Credentials become an authority by the users that this gateway knows; the log and the reads then
//! judge it by the state that they meet. Where the two differ, because users or roles have changed
//! in between, the credentials are looked at again, a bounded number of times. What a gateway is
//! about to refuse it refuses only after a barrier: it may have been asked by somebody whom another
//! gateway has told more than has arrived here.

use super::Context;
use super::error::Error;
use crate::auth::{Credentials, Unknown};
use crate::backend::{Log, Sessions};
use crate::keyspace::auth::{AuthState, Authority};
use crate::keyspace::command::{Command, Op, Outcome};
use crate::keyspace::error::{ReadError, Refusal};
use crate::lease::LeaseError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tonic::Status;

/// How often one request is done again because users or roles change all the time.
const ATTEMPTS: usize = 8;

/// Somebody, as a state knows them; no state while authentication is off.
type Identified = (Option<Authority>, Option<Arc<AuthState>>);

/// A failure that another look at the credentials may mend.
pub trait MayBeOutdated {
    /// Whether it is one.
    fn is_outdated(&self) -> bool;
}

impl MayBeOutdated for Refusal {
    fn is_outdated(&self) -> bool {
        matches!(self, Self::AuthOldRevision | Self::UserEmpty)
    }
}

impl MayBeOutdated for ReadError {
    fn is_outdated(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_outdated())
    }
}

impl MayBeOutdated for LeaseError {
    fn is_outdated(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_outdated())
    }
}

impl<L: Log, S: Sessions> Context<L, S> {
    /// Who sends a request: nobody in particular while authentication is off, or if there are no
    /// credentials.
    ///
    /// # Errors
    /// [`Error::InvalidAuthToken`]; the backend stopped.
    pub async fn authority(&self, credentials: &Credentials) -> Result<Option<Authority>, Error> {
        if credentials.token().is_none() && !self.reader.view().auth_enabled() {
            return Ok(None);
        }
        Ok(self.identify(credentials).await?.0)
    }

    async fn identify(&self, credentials: &Credentials) -> Result<Identified, Error> {
        let known = |state: Arc<AuthState>| {
            if !state.enabled {
                return Err(Unknown);
            }
            let authority = self.auth.identify(credentials, &state)?;
            let ahead = authority.as_ref().is_some_and(|who| who.auth_revision > state.revision);
            if ahead { Err(Unknown) } else { Ok((authority, Some(state))) }
        };
        let view = self.reader.view();
        let state = view.auth();
        if !state.enabled && credentials.token().is_none() {
            return Ok((None, None));
        }
        // A token that is not known here, or for which there is no use, may be known elsewhere.
        if let Ok(known) = known(state) {
            return Ok(known);
        }
        self.log.barrier().await?;
        let state = view.auth();
        if !state.enabled {
            return Ok((None, None));
        }
        let authority = self.auth.identify(credentials, &state);
        Ok((authority.map_err(|_| Error::InvalidAuthToken)?, Some(state)))
    }

    /// Who sends a request, if `permit` holds for them.
    ///
    /// # Errors
    /// The refusal; [`Error::InvalidAuthToken`]; the backend stopped.
    pub async fn permitted(
        &self,
        credentials: &Credentials,
        permit: impl Fn(&AuthState, Option<&Authority>) -> Result<(), Refusal>,
    ) -> Result<Option<Authority>, Error> {
        let (authority, state) = self.identify(credentials).await?;
        let Some(state) = state else { return Ok(authority) };
        if permit(&state, authority.as_ref()).is_ok() {
            return Ok(authority);
        }
        self.log.barrier().await?;
        let (authority, state) = self.identify(credentials).await?;
        if let Some(state) = state {
            permit(&state, authority.as_ref())?;
        }
        Ok(authority)
    }

    /// Lets only root go on, while authentication is on.
    ///
    /// # Errors
    /// As [`Context::permitted`].
    pub async fn admin(&self, credentials: &Credentials) -> Result<Option<Authority>, Error> {
        self.permitted(credentials, |state, who| state.admin(who)).await
    }

    /// Lets only users go on, while authentication is on.
    ///
    /// # Errors
    /// As [`Context::permitted`].
    pub async fn anybody(&self, credentials: &Credentials) -> Result<Option<Authority>, Error> {
        self.permitted(credentials, |state, who| state.anybody(who)).await
    }

    /// Orders an operation on behalf of whoever sends it.
    ///
    /// # Errors
    /// [`Error::InvalidAuthToken`]; the backend stopped. Refusals are in the outcome.
    pub async fn propose(&self, op: Op, credentials: &Credentials) -> Result<Outcome, Error> {
        let mut authority = self.authority(credentials).await?;
        let mut op = Some(op);
        for left in (0..ATTEMPTS).rev() {
            let again = if left > 0 && !credentials.is_empty() { op.clone() } else { None };
            let command = Command { authority: authority.clone(), op: op.take() };
            let outcome = self.log.propose(command).await?;
            let outdated = outcome.reply.as_ref().err().is_some_and(MayBeOutdated::is_outdated);
            if !outdated || again.is_none() {
                return Ok(outcome);
            }
            let now = self.authority(credentials).await?;
            if now == authority {
                return Ok(outcome);
            }
            (authority, op) = (now, again);
        }
        Err(Error::AuthOldRevision)
    }

    /// Does something on behalf of whoever asks for it, again if they are not who they were.
    ///
    /// # Errors
    /// [`Error::InvalidAuthToken`]; the backend stopped; whatever `act` gives.
    pub async fn on_behalf<T, E: MayBeOutdated, F>(
        &self,
        credentials: &Credentials,
        mut act: impl FnMut(Option<Authority>) -> F,
    ) -> Result<Result<T, E>, Status>
    where
        F: Future<Output = Result<Result<T, E>, Status>>,
    {
        let mut authority = self.authority(credentials).await?;
        for _ in 0..ATTEMPTS {
            let result = act(authority.clone()).await?;
            let outdated = result.as_ref().err().is_some_and(MayBeOutdated::is_outdated);
            if !outdated || credentials.is_empty() {
                return Ok(result);
            }
            let now = self.authority(credentials).await?;
            if now == authority {
                return Ok(result);
            }
            authority = now;
        }
        Err(Error::AuthOldRevision.into())
    }
}

/// A check that takes a while.
pub type Checked<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// What services ask that know nothing of backends.
pub trait Gate: Send + Sync + 'static {
    /// Lets only root go on.
    fn admin<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a>;

    /// Lets only users go on.
    fn anybody<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a>;

    /// Lets those go on who may read a range.
    fn read<'a>(
        &'a self,
        credentials: &'a Credentials,
        key: &'a [u8],
        range_end: &'a [u8],
    ) -> Checked<'a>;

    /// Waits until everything that was acknowledged to anyone before the call can be seen here.
    fn caught_up(&self) -> Checked<'_>;
}

impl<L: Log, S: Sessions> Gate for Context<L, S> {
    fn admin<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a> {
        Box::pin(async move { Context::admin(self, credentials).await.map(drop) })
    }

    fn anybody<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a> {
        Box::pin(async move { Context::anybody(self, credentials).await.map(drop) })
    }

    fn read<'a>(
        &'a self,
        credentials: &'a Credentials,
        key: &'a [u8],
        range_end: &'a [u8],
    ) -> Checked<'a> {
        Box::pin(async move {
            if self.reader.view().auth_enabled() {
                // What is let in here stays, so it is not let in by a state that may be over. A
                // backend that can't be reached tells nobody of a newer one either.
                let _ = self.log.barrier().await;
            }
            let permit =
                |state: &AuthState, who: Option<&Authority>| state.rights(who).read(key, range_end);
            self.permitted(credentials, permit).await.map(drop)
        })
    }

    fn caught_up(&self) -> Checked<'_> {
        Box::pin(async move { Ok(self.log.barrier().await?) })
    }
}

/// A gate that stands open.
#[cfg(test)]
pub struct Open;

#[cfg(test)]
impl Gate for Open {
    fn admin<'a>(&'a self, _: &'a Credentials) -> Checked<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn anybody<'a>(&'a self, _: &'a Credentials) -> Checked<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn read<'a>(&'a self, _: &'a Credentials, _: &'a [u8], _: &'a [u8]) -> Checked<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn caught_up(&self) -> Checked<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}
