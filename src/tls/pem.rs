//! What is in PEM files, with the reasons in words when it isn't what was expected.

use super::TlsError;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

fn unreadable(path: &Path, error: &pem::Error) -> TlsError {
    TlsError::content(path, format!("not readable as PEM: {error}"))
}

/// The certificates in a file, the server's or client's own first.
pub(super) fn chain(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(path, &error))?;
    if chain.is_empty() {
        return Err(TlsError::content(path, "there is no certificate in PEM form in it"));
    }
    Ok(chain)
}

/// The first private key in a file.
pub(super) fn key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            TlsError::content(path, "there is no unencrypted private key in PEM form in it")
        }
        error => unreadable(path, &error),
    })
}

/// The authorities in a file.
pub(super) fn roots(path: &Path, text: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path, text)? {
        roots.add(certificate).map_err(|error| {
            TlsError::content(path, format!("a certificate in it can't be used: {error}"))
        })?;
    }
    Ok(roots)
}
