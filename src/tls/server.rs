//! What a server shows to clients and demands of them, following the files that it comes from.
//!
//! Certificate, key, authorities and revoked certificates make one configuration, which is replaced
//! as a whole: no connection ever sees the new certificate with the old key. What can't be used is
//! said once, and the configuration before it stays.

use super::clients::{Clients, Revoked};
use super::{TlsError, certificate, generated, pem, read};
use crate::config::tls::{CertificateSource, TLS13_SUITES, TlsConfig};
use crate::telemetry::Metrics;
use parking_lot::{Mutex, RwLock};
use ring::digest::{Context, Digest, SHA256};
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The files that a configuration comes from.
#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    trusted_ca: Option<PathBuf>,
    revoked: Option<PathBuf>,
}

/// What is in them.
struct Contents {
    certificate: Result<Vec<u8>, TlsError>,
    key: Result<Vec<u8>, TlsError>,
    trusted_ca: Option<Result<Vec<u8>, TlsError>>,
    revoked: Option<Result<Vec<u8>, TlsError>>,
}

impl Files {
    fn read(&self) -> Contents {
        Contents {
            certificate: read(&self.certificate),
            key: read(&self.key),
            trusted_ca: self.trusted_ca.as_deref().map(read),
            revoked: self.revoked.as_deref().map(read),
        }
    }
}

impl Contents {
    /// Tells contents apart without keeping them.
    fn digest(&self) -> Digest {
        let mut context = Context::new(&SHA256);
        let all = [Some(&self.certificate), Some(&self.key)];
        for content in all.into_iter().chain([self.trusted_ca.as_ref(), self.revoked.as_ref()]) {
            match content {
                None => context.update(&[0]),
                Some(Ok(bytes)) => {
                    context.update(&[1]);
                    context.update(&bytes.len().to_be_bytes());
                    context.update(bytes);
                }
                Some(Err(error)) => {
                    context.update(&[2]);
                    context.update(error.to_string().as_bytes());
                }
            }
        }
        context.finish()
    }
}

/// What was read last.
struct Seen {
    digest: Digest,
    /// Why it can't be used, as long as nobody has been told.
    unsaid: Option<TlsError>,
}

/// A server's side of TLS.
pub struct ServerTls {
    config: TlsConfig,
    files: Files,
    current: RwLock<Arc<ServerConfig>>,
    seen: Mutex<Seen>,
    metrics: Arc<Metrics>,
}

impl ServerTls {
    /// Reads the files, or makes a certificate in `data_dir` if that is how it's configured.
    ///
    /// # Errors
    /// Which file can't be used, and why.
    pub fn load(
        config: &TlsConfig,
        data_dir: &Path,
        metrics: Arc<Metrics>,
    ) -> Result<ServerTls, TlsError> {
        let (certificate, key) = match &config.certificate {
            CertificateSource::Files { certificate, key } => (certificate.clone(), key.clone()),
            CertificateSource::Generated { years, hosts } => {
                generated::files(data_dir, hosts, *years)?
            }
        };
        let (trusted_ca, revoked) = (config.trusted_ca.clone(), config.revoked.clone());
        let files = Files { certificate, key, trusted_ca, revoked };
        let contents = files.read();
        let seen = Mutex::new(Seen { digest: contents.digest(), unsaid: None });
        let built = build(config, &files, contents)?;
        note_end(built.not_after, &metrics);
        let current = RwLock::new(Arc::new(built.server));
        Ok(ServerTls { config: config.clone(), files, current, seen, metrics })
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.read().clone()
    }

    /// Whether the common name in a client's certificate names a user.
    pub fn names_users(&self) -> bool {
        self.config.names_users
    }

    /// Looks at the files, and takes them over if they have changed and can be used. If they can't,
    /// that is said when they are still the same the next time: they may be in the middle of being
    /// written.
    pub fn refresh(&self) {
        let contents = self.files.read();
        let digest = contents.digest();
        let mut seen = self.seen.lock();
        if seen.digest.as_ref() == digest.as_ref() {
            if let Some(error) = seen.unsaid.take() {
                self.metrics.tls.reload_failures_total.inc();
                tracing::warn!(
                    %error,
                    "the files for TLS have changed and can't be used; new connections use what was \
                     in them before"
                );
            }
            return;
        }
        *seen = Seen { digest, unsaid: None };
        match build(&self.config, &self.files, contents) {
            Ok(built) => {
                note_end(built.not_after, &self.metrics);
                *self.current.write() = Arc::new(built.server);
                self.metrics.tls.reloads_total.inc();
                tracing::info!(
                    certificate = %self.files.certificate.display(),
                    "the files for TLS have changed; new connections use what is in them now"
                );
            }
            Err(error) => seen.unsaid = Some(error),
        }
    }

    /// Follows the files, for as long as somebody polls it.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let looking = self.clone();
            if tokio::task::spawn_blocking(move || looking.refresh()).await.is_err() {
                tracing::error!("looking at the files for TLS failed");
            }
        }
    }
}

fn note_end(not_after: Option<SystemTime>, metrics: &Metrics) {
    let since_epoch = not_after.and_then(|end| end.duration_since(SystemTime::UNIX_EPOCH).ok());
    let seconds = since_epoch.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    metrics.tls.certificate_not_after.set(seconds);
    if not_after.is_some_and(|end| end <= super::today()) {
        tracing::warn!("the server's certificate has expired");
    }
}

struct Built {
    server: ServerConfig,
    not_after: Option<SystemTime>,
}

fn build(config: &TlsConfig, files: &Files, contents: Contents) -> Result<Built, TlsError> {
    let provider = Arc::new(provider(config));
    let chain = pem::chain(&files.certificate, &contents.certificate?)?;
    let key = pem::key(&files.key, &contents.key?)?;
    let revoked = match (&files.revoked, contents.revoked) {
        (Some(path), Some(content)) => Revoked::read(path, &content?)?,
        _ => Revoked::default(),
    };
    let demanding = files.trusted_ca.is_some();
    let clients = match (&files.trusted_ca, contents.trusted_ca) {
        (Some(path), Some(content)) => {
            let roots = pem::roots(path, &content?)?;
            let names = &config.allowed_hostnames;
            Arc::new(Clients::new(roots, revoked, names, &provider)?)
        }
        _ => WebPkiClientVerifier::no_client_auth(),
    };
    let not_after = chain.first().and_then(|der| certificate::not_after(der));
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(config))
        .map_err(|error| TlsError::Together(error.to_string()))?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(|error| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            TlsError::Together(format!("{certificate} with key {key}: {error}"))
        })?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if demanding {
        // A resumed session would not be checked again: neither against the revoked certificates of
        // the day nor against the certificate's own end.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
    }
    Ok(Built { server, not_after })
}

fn provider(config: &TlsConfig) -> CryptoProvider {
    let mut provider = super::provider();
    if let Some(wanted) = &config.cipher_suites {
        provider.cipher_suites.retain(|suite| {
            let number = u16::from(suite.suite());
            TLS13_SUITES.contains(&number) || wanted.contains(&number)
        });
    }
    provider
}

fn versions(config: &TlsConfig) -> Vec<&'static SupportedProtocolVersion> {
    let versions = config.versions;
    let spoken = [(versions.tls13, &version::TLS13), (versions.tls12, &version::TLS12)];
    spoken.into_iter().filter_map(|(spoken, version)| spoken.then_some(version)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tls::TlsVersions;
    use rcgen::{CertificateParams, KeyPair};

    struct Place {
        dir: tempfile::TempDir,
        metrics: Arc<Metrics>,
    }

    impl Place {
        fn new() -> Place {
            let dir = tempfile::tempdir().expect("a directory");
            Place { dir, metrics: Arc::new(Metrics::new(false)) }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.path(name), text).expect("written");
        }

        /// Writes a new pair; returns the certificate.
        fn write_pair(&self) -> Vec<u8> {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec!["localhost".into()]).expect("params");
            let certificate = params.self_signed(&key).expect("a certificate");
            self.write("cert", &certificate.pem());
            self.write("key", &key.serialize_pem());
            certificate.der().to_vec()
        }

        fn config(&self) -> TlsConfig {
            TlsConfig {
                certificate: CertificateSource::Files {
                    certificate: self.path("cert"),
                    key: self.path("key"),
                },
                trusted_ca: None,
                names_users: false,
                revoked: None,
                allowed_hostnames: Vec::new(),
                versions: TlsVersions { tls12: true, tls13: true },
                cipher_suites: None,
            }
        }

        fn load(&self, config: &TlsConfig) -> Result<ServerTls, String> {
            ServerTls::load(config, self.dir.path(), self.metrics.clone())
                .map_err(|error| error.to_string())
        }

        fn counted(&self) -> (u64, u64) {
            let tls = &self.metrics.tls;
            (tls.reloads_total.get(), tls.reload_failures_total.get())
        }
    }

    #[test]
    fn good_files_are_taken_over_and_bad_ones_are_not() {
        let place = Place::new();
        place.write_pair();
        let tls = place.load(&place.config()).expect("loaded");
        assert!(place.metrics.tls.certificate_not_after.get() > 0);
        let first = tls.current();
        tls.refresh();
        assert!(Arc::ptr_eq(&first, &tls.current()));

        place.write_pair();
        tls.refresh();
        let second = tls.current();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(place.counted(), (1, 0));

        // Half of a pair, then nothing at all: each is complained about once.
        let key = std::fs::read_to_string(place.path("key")).expect("a key");
        place.write_pair();
        place.write("key", &key);
        for _ in 0..3 {
            tls.refresh();
        }
        // What is mended before the next look is not worth a word.
        place.write("cert", "");
        tls.refresh();
        std::fs::remove_file(place.path("cert")).expect("removed");
        for _ in 0..3 {
            tls.refresh();
        }
        assert!(Arc::ptr_eq(&second, &tls.current()));
        assert_eq!(place.counted(), (1, 2));

        place.write_pair();
        tls.refresh();
        assert!(!Arc::ptr_eq(&second, &tls.current()));
        assert_eq!(place.counted(), (2, 2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let place = Place::new();
        let config = place.config();
        let wrong = |config: &TlsConfig| place.load(config).err().expect("refused");
        assert!(wrong(&config).contains("cert: No such file"), "{}", wrong(&config));
        place.write_pair();
        let certificate = std::fs::read_to_string(place.path("cert")).expect("a certificate");
        place.write("key", &certificate);
        assert!(wrong(&config).contains("no unencrypted private key"), "{}", wrong(&config));
        place.write_pair();
        place.write("cert", "");
        assert!(wrong(&config).contains("no certificate in PEM form"), "{}", wrong(&config));
        place.write("cert", &certificate);
        assert!(wrong(&config).contains("KeyMismatch"), "{}", wrong(&config));
        place.write_pair();
        place.write("ca", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let config = TlsConfig { trusted_ca: Some(place.path("ca")), ..config };
        assert!(wrong(&config).contains("ca: a certificate in it can't be used"));
    }

    #[test]
    fn suites_and_versions_are_as_configured() {
        let place = Place::new();
        let mut config = place.config();
        config.cipher_suites = Some(vec![0xc02f]);
        let suites: Vec<u16> =
            provider(&config).cipher_suites.iter().map(|suite| suite.suite().into()).collect();
        assert_eq!(suites.iter().filter(|suite| TLS13_SUITES.contains(suite)).count(), 3);
        assert!(suites.contains(&0xc02f) && suites.len() == 4, "{suites:x?}");
        config.versions = TlsVersions { tls12: false, tls13: true };
        assert_eq!(versions(&config), [&version::TLS13]);
    }
}
