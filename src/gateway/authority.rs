//! On whose behalf a request is done.
//!
//! Credentials become an authority by the users that this gateway knows; the log and the reads then
//! judge it by the state that they meet. Where the two differ, because users or roles have changed
//! in between, the credentials are looked at again, a bounded number of times. What a gateway is
//! about to refuse it refuses only after a barrier: it may have been asked by somebody whom another
//! gateway has told more than has arrived here. What it is about to let in for good, and nobody judges
//! again, it lets in only after a barrier too: it may have been taken away elsewhere.

use super::Context;
use super::error::Error;
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::keyspace::auth::{AuthState, Authority};
use crate::keyspace::command::{Command, Op, Outcome};
use crate::keyspace::error::{ReadError, Refusal};
use crate::lease::LeaseError;
use std::future::Future;
use std::pin::Pin;
use tonic::Status;

/// How often one request is done again because users or roles change all the time.
const ATTEMPTS: usize = 8;

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
        self.permitted(credentials, |_, _| Ok(())).await
    }

    /// Who sends a request, if what is known here is enough to say so and `permit` holds for them.
    /// `None` is no refusal: others may have been told of more than this gateway.
    fn let_in(
        &self,
        credentials: &Credentials,
        permit: impl Fn(&AuthState, Option<&Authority>) -> Result<(), Refusal>,
    ) -> Option<Option<Authority>> {
        let state = self.reader.view().auth();
        if !state.enabled {
            // A token for which there is no use here may have one elsewhere.
            return credentials.token().is_none().then_some(None);
        }
        let authority = self.auth.identify(credentials, &state).ok()?;
        if authority.as_ref().is_some_and(|who| who.auth_revision > state.revision) {
            return None;
        }
        permit(&state, authority.as_ref()).is_ok().then_some(authority)
    }

    /// Who sends a request, if `permit` holds for them in what this gateway knows. For those who have
    /// waited for a barrier since the request came: what is refused here is refused, and what is
    /// permitted was not revoked before the request.
    ///
    /// # Errors
    /// The refusal; [`Error::InvalidAuthToken`].
    pub fn judge(
        &self,
        credentials: &Credentials,
        permit: impl Fn(&AuthState, Option<&Authority>) -> Result<(), Refusal>,
    ) -> Result<Option<Authority>, Error> {
        let state = self.reader.view().auth();
        if !state.enabled {
            return Ok(None);
        }
        let authority = self.auth.identify(credentials, &state);
        let authority = authority.map_err(|_| Error::InvalidAuthToken)?;
        permit(&state, authority.as_ref())?;
        Ok(authority)
    }

    /// Who sends a request, if `permit` holds for them by what this gateway knows, be it outdated: for
    /// what is judged once more where it is done, and for what is asked about this server itself.
    ///
    /// # Errors
    /// The refusal; [`Error::InvalidAuthToken`]; the backend stopped.
    pub async fn permitted(
        &self,
        credentials: &Credentials,
        permit: impl Fn(&AuthState, Option<&Authority>) -> Result<(), Refusal>,
    ) -> Result<Option<Authority>, Error> {
        if let Some(authority) = self.let_in(credentials, &permit) {
            return Ok(authority);
        }
        self.permitted_now(credentials, permit).await
    }

    /// Who sends a request, if `permit` holds for them in a state that holds everything which was
    /// acknowledged to anyone before the call. Whoever gets an answer has waited for a barrier.
    ///
    /// # Errors
    /// The refusal; [`Error::InvalidAuthToken`]; the state can't be established.
    pub async fn permitted_now(
        &self,
        credentials: &Credentials,
        permit: impl Fn(&AuthState, Option<&Authority>) -> Result<(), Refusal>,
    ) -> Result<Option<Authority>, Error> {
        self.log.barrier().await?;
        self.judge(credentials, permit)
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

    /// Lets only users go on, as of a barrier.
    fn anybody_now<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a>;

    /// Lets those go on who may watch a range, as of a barrier: a watch that is let in stays. Whoever
    /// goes on sees everything here that was acknowledged to anyone before the call.
    fn watch<'a>(
        &'a self,
        credentials: &'a Credentials,
        key: &'a [u8],
        range_end: &'a [u8],
    ) -> Checked<'a>;
}

impl<L: Log, S: Sessions> Gate for Context<L, S> {
    fn admin<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a> {
        Box::pin(async move { Context::admin(self, credentials).await.map(drop) })
    }

    fn anybody<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a> {
        Box::pin(async move { Context::anybody(self, credentials).await.map(drop) })
    }

    fn anybody_now<'a>(&'a self, credentials: &'a Credentials) -> Checked<'a> {
        let permit = |state: &AuthState, who: Option<&Authority>| state.anybody(who);
        Box::pin(async move { self.permitted_now(credentials, permit).await.map(drop) })
    }

    // Also while authentication is off as far as is known here: it may have been turned on elsewhere.
    fn watch<'a>(
        &'a self,
        credentials: &'a Credentials,
        key: &'a [u8],
        range_end: &'a [u8],
    ) -> Checked<'a> {
        let permit = move |state: &AuthState, who: Option<&Authority>| {
            state.rights(who).read(key, range_end)
        };
        Box::pin(async move { self.permitted_now(credentials, permit).await.map(drop) })
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

    fn anybody_now<'a>(&'a self, _: &'a Credentials) -> Checked<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn watch<'a>(&'a self, _: &'a Credentials, _: &'a [u8], _: &'a [u8]) -> Checked<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests;
