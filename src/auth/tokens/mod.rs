//! Tokens: given for a password, and checked with every request.
//!
//! Both kinds are signed, so that any gateway can check what any other has given, and nothing is
//! written when one is given: [`simple`] ones with a key that the keyspace holds, [`jwt`] with one
//! from a file.

mod der;
mod es512;
pub mod jwt;
mod keys;
pub mod simple;

use crate::config::TokenConfig;
use crate::keyspace::auth::AuthState;
use jwt::Jwt;
use simple::SimpleTokens;

/// Why no token was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// None are given by this configuration.
    #[error("tokens are turned off")]
    Off,
    /// There is only a key to check tokens with.
    #[error("tokens can only be checked here")]
    VerifyOnly,
    /// The keyspace holds no key, or signing failed.
    #[error("there is no key to sign a token with")]
    NoKey,
}

/// Gives and checks tokens of the configured kind.
pub enum Tokens {
    /// Signed with the keyspace's key.
    Simple(SimpleTokens),
    /// Signed with a key from a file.
    Jwt(Box<Jwt>),
    /// None: users come by their certificates.
    Off,
}

impl Tokens {
    /// As configured; reads the files that are named.
    ///
    /// # Errors
    /// One line saying what is wrong with them.
    pub fn new(config: &TokenConfig) -> Result<Self, String> {
        Ok(match config {
            TokenConfig::Off => Self::Off,
            TokenConfig::Simple { ttl } => Self::Simple(SimpleTokens::new(*ttl)),
            TokenConfig::Jwt(options) => Self::Jwt(Box::new(Jwt::new(options)?)),
        })
    }

    /// A token for a user of `state`.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn give(&self, user: &str, state: &AuthState) -> Result<String, TokenError> {
        match self {
            Self::Simple(tokens) => tokens.give(user, state),
            Self::Jwt(tokens) => tokens.give(user, state.revision),
            Self::Off => Err(TokenError::Off),
        }
    }

    /// Whose token this is, and the auth revision that its user is to be judged at.
    pub fn check(&self, token: &str, state: &AuthState) -> Option<(String, u64)> {
        match self {
            Self::Simple(tokens) => Some((tokens.check(token, state)?, state.revision)),
            Self::Jwt(tokens) => tokens.check(token),
            Self::Off => None,
        }
    }
}
