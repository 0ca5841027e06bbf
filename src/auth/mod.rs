//! Who somebody is: passwords, tokens, the names in certificates.
//!
//! Owns the hashing of passwords, off the serving threads, and the making and checking of tokens.
//! Ends in an [`Authority`], a name and the auth revision that it was checked at; what that name may
//! do is the keyspace's to say. Deliberately absent: users and roles, and any list of tokens given.

mod clock;
pub mod credentials;
pub mod passwords;
pub mod tokens;

use crate::config::AuthConfig;
use crate::keyspace::auth::{AuthState, Authority};
pub use credentials::{CertificateName, Credentials};
use passwords::Passwords;
use tokens::Tokens;

/// Everything about who somebody is.
pub struct Auth {
    /// Hashes and checks passwords.
    pub passwords: Passwords,
    /// Gives and checks tokens.
    pub tokens: Tokens,
}

impl Auth {
    /// As configured; reads the files that the kind of token names.
    ///
    /// # Errors
    /// One line saying what is wrong with them.
    pub fn new(config: &AuthConfig) -> Result<Self, String> {
        let tokens = Tokens::new(&config.token)?;
        Ok(Self { passwords: Passwords::new(config.bcrypt_cost), tokens })
    }

    /// Who `credentials` belong to, as `state` knows them: nobody if there are none.
    ///
    /// # Errors
    /// [`Unknown`]: a token that this state does not stand for.
    pub fn identify(
        &self,
        credentials: &Credentials,
        state: &AuthState,
    ) -> Result<Option<Authority>, Unknown> {
        let gateway = false;
        if let Some(token) = credentials.token() {
            let found = token.and_then(|token| self.tokens.check(token, state));
            let (user, auth_revision) = found.ok_or(Unknown)?;
            return Ok(Some(Authority { user, auth_revision, gateway }));
        }
        let name = credentials.certificate_name();
        let auth_revision = state.revision;
        Ok(name.map(|name| Authority { user: name.to_owned(), auth_revision, gateway }))
    }
}

/// A token that is not one, or not any more, or not yet here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;
