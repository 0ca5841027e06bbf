//! TLS: what listeners show and demand, kept up to date with the files it comes from, and what
//! connections to others are checked by.
//!
//! [`server::ServerTls`] is one configuration of a server that can be replaced as a whole while
//! connections are made; [`client`] the other side. Deliberately absent: sockets and handshakes
//! (the gateway's), and what a name in a certificate may do (the keyspace's).

pub mod certificate;
pub mod client;
mod clients;
mod generated;
mod pem;
pub mod server;

use rustls::crypto::CryptoProvider;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why a file that TLS needs can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("open {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Content { path: PathBuf, why: String },
    #[error("{0}")]
    Together(String),
}

impl TlsError {
    fn content(path: &Path, why: impl Into<String>) -> TlsError {
        TlsError::Content { path: path.to_owned(), why: why.into() }
    }
}

/// The cryptography in use, with everything that is not outdated.
fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// The time of day.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid from one date to another, and nothing else depends on it"
)]
fn today() -> SystemTime {
    SystemTime::now()
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}
