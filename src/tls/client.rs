//! The client's side of TLS: how the server is checked, and what is shown to it.

use super::{TlsError, pem, provider, read};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;

/// The files of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities that the server's certificate must come from; those of the system if none.
    pub ca: Option<PathBuf>,
    /// A certificate to show, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether to talk to whoever answers.
    pub trust_anybody: bool,
}

/// Reads the files. `protocols` are offered to the server in this order.
///
/// # Errors
/// Which file can't be used, and why.
pub fn configure(files: &ClientFiles, protocols: &[&str]) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Together(error.to_string()))?;
    let builder = if files.trust_anybody {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        let roots = match &files.ca {
            Some(path) => pem::roots(path, &read(path)?)?,
            None => system_roots()?,
        };
        builder.with_root_certificates(roots)
    };
    let mut config = match &files.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = pem::chain(certificate, &read(certificate)?)?;
            let secret = pem::key(key, &read(key)?)?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| {
                TlsError::Together(format!(
                    "{} with key {}: {error}",
                    certificate.display(),
                    key.display()
                ))
            })?
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(TlsError::Together(
            "no authority is given for the server's certificate, and this system has none".into(),
        ));
    }
    Ok(roots)
}

/// Takes every certificate; whoever shows it must still have its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
