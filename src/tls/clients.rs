//! Which clients a server lets in: those with a certificate of a trusted authority that has not
//! been revoked, with one of the wanted names.

use super::TlsError;
use super::certificate::{serial, significant};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// Demands certificates.
#[derive(Debug)]
pub(super) struct Clients {
    trusted: Arc<dyn ClientCertVerifier>,
    revoked: Revoked,
    /// A certificate needs one of them; empty lets every name in.
    hostnames: Vec<ServerName<'static>>,
}

impl Clients {
    pub fn new(
        roots: RootCertStore,
        revoked: Revoked,
        hostnames: &[String],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Clients, TlsError> {
        let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let trusted = builder.build().map_err(|error| TlsError::Together(error.to_string()))?;
        let name = |name: &String| {
            ServerName::try_from(name.clone()).map_err(|_| {
                TlsError::Together(format!(
                    "--client-cert-allowed-hostname: {name:?} is no host name"
                ))
            })
        };
        let hostnames = hostnames.iter().map(name).collect::<Result<_, _>>()?;
        Ok(Clients { trusted, revoked, hostnames })
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trusted.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.trusted.verify_client_cert(end_entity, intermediates, now)?;
        // As in etcd, whatever the client shows must not be on the list, its chain included.
        if std::iter::once(end_entity).chain(intermediates).any(|shown| self.revoked.has(shown)) {
            return Err(CertificateError::Revoked.into());
        }
        if !self.hostnames.is_empty() {
            let parsed = ParsedCertificate::try_from(end_entity)?;
            if !self.hostnames.iter().any(|name| verify_server_name(&parsed, name).is_ok()) {
                return Err(CertificateError::NotValidForName.into());
            }
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trusted.supported_verify_schemes()
    }
}

/// Serial numbers of revoked certificates, whoever gave them out: etcd looks at nothing else of a
/// list either, not even at its age.
#[derive(Debug, Default)]
pub(super) struct Revoked(BTreeSet<Vec<u8>>);

impl Revoked {
    /// Reads one list in DER, or any number of them in PEM.
    pub fn read(path: &Path, content: &[u8]) -> Result<Revoked, TlsError> {
        let unreadable = |why: String| {
            TlsError::content(path, format!("not readable as a certificate revocation list: {why}"))
        };
        let lists = if content.first() == Some(&0x30) {
            vec![CertificateRevocationListDer::from(content.to_vec())]
        } else {
            CertificateRevocationListDer::pem_slice_iter(content)
                .collect::<Result<Vec<_>, pem::Error>>()
                .map_err(|error| unreadable(error.to_string()))?
        };
        if lists.is_empty() {
            return Err(unreadable("there is none in it".into()));
        }
        let mut serials = BTreeSet::new();
        for list in &lists {
            let (_, list) = CertificateRevocationList::from_der(list)
                .map_err(|error| unreadable(error.to_string()))?;
            for revoked in list.iter_revoked_certificates() {
                serials.insert(significant(revoked.raw_serial()).to_vec());
            }
        }
        Ok(Revoked(serials))
    }

    /// A certificate that can't be read counts as revoked.
    fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        !self.0.is_empty() && serial(certificate).is_none_or(|serial| self.0.contains(&serial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod,
        KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
    };

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA")
    }

    fn client(authority: &Authority, name: &str, serial: u64) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("a key");
        params.signed_by(&key, authority).expect("a certificate").der().clone()
    }

    fn list(authority: &Authority, serials: &[u64]) -> rcgen::CertificateRevocationList {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2024, 2, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        }
        .signed_by(authority)
        .expect("a list")
    }

    fn clients(authority: &Authority, revoked: Revoked, names: &[&str]) -> Clients {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("a root");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Clients::new(roots, revoked, &names, &super::super::provider().into()).expect("clients")
    }

    fn verdict(clients: &Clients, shown: &CertificateDer<'_>) -> Result<(), Error> {
        clients.verify_client_cert(shown, &[], UnixTime::now()).map(drop)
    }

    #[test]
    fn revoked_certificates_are_refused() {
        let ours = authority();
        let (good, bad) = (client(&ours, "a", 300), client(&ours, "a", 0x80_0001));
        let list = list(&ours, &[7, 0x80_0001]);
        let path = Path::new("list");
        for content in [list.der().to_vec(), list.pem().expect("PEM").into_bytes()] {
            let clients = clients(&ours, Revoked::read(path, &content).expect("a list"), &[]);
            assert_eq!(verdict(&clients, &good), Ok(()));
            assert_eq!(verdict(&clients, &bad), Err(CertificateError::Revoked.into()));
        }
        for content in [&b""[..], b"\x30\x03\x02\x01\x05", b"-----BEGIN X509 CRL-----\n"] {
            let error = Revoked::read(path, content).expect_err("not a list").to_string();
            assert!(error.starts_with("list: not readable as a certificate revocation"), "{error}");
        }
    }

    #[test]
    fn only_wanted_names_are_let_in() {
        let ours = authority();
        let clients = clients(&ours, Revoked::default(), &["a.example.org", "10.0.0.1"]);
        let refused = Err(CertificateError::NotValidForName.into());
        for (name, want) in [
            ("a.example.org", Ok(())),
            ("*.example.org", Ok(())),
            ("10.0.0.1", Ok(())),
            ("example.org", refused.clone()),
            ("10.0.0.2", refused),
        ] {
            assert_eq!(verdict(&clients, &client(&ours, name, 1)), want, "{name}");
        }
    }

    #[test]
    fn other_authorities_are_not_trusted() {
        let (ours, theirs) = (authority(), authority());
        let clients = clients(&ours, Revoked::default(), &[]);
        assert!(clients.client_auth_mandatory());
        assert!(verdict(&clients, &client(&theirs, "a", 1)).is_err());
    }
}
