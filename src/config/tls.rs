//! The flags of TLS on the listeners for clients and metrics.
//!
//! Names, combinations and texts are etcd's; files are not opened here.

use super::sources::Values;
use super::{ConfigError, Endpoint, Level, Note};
use std::fmt;
use std::path::PathBuf;

/// How TLS is spoken on listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Where the server's certificate comes from.
    pub certificate: CertificateSource,
    /// Authorities that client certificates must come from; with one, every client needs a
    /// certificate.
    pub trusted_ca: Option<PathBuf>,
    /// Whether the common name of a client's certificate names a user.
    pub names_users: bool,
    /// File of revoked client certificates.
    pub revoked: Option<PathBuf>,
    /// Names of which a client certificate must have one; empty lets every name in.
    pub allowed_hostnames: Vec<String>,
    /// The versions spoken.
    pub versions: TlsVersions,
    /// The cipher suites for TLS 1.2, by their registered numbers; none is all.
    pub cipher_suites: Option<Vec<u16>>,
}

/// In the words of etcd's log.
impl fmt::Display for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
        };
        match &self.certificate {
            CertificateSource::Files { certificate, key } => {
                write!(f, "cert = {}, key = {}", certificate.display(), key.display())?;
            }
            CertificateSource::Generated { hosts, .. } => {
                write!(f, "cert and key generated for {}", hosts.join(" "))?;
            }
        }
        write!(
            f,
            ", trusted-ca = {}, client-cert-auth = {}, crl-file = {}",
            path(&self.trusted_ca),
            self.names_users,
            path(&self.revoked)
        )
    }
}

/// Where a server's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// Two PEM files.
    Files { certificate: PathBuf, key: PathBuf },
    /// Made when there is none yet, and kept in the data directory.
    Generated {
        /// How long it is valid, in years of 365 days.
        years: u64,
        /// The hosts that it is for: names and addresses.
        hosts: Vec<String>,
    },
}

/// The versions of TLS that are spoken, at least one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsVersions {
    pub tls12: bool,
    pub tls13: bool,
}

/// What is listened on.
pub(super) struct Listening<'a> {
    pub client: &'a [Endpoint],
    pub client_http: &'a [Endpoint],
    pub metrics: &'a [Endpoint],
}

/// Years above this would not fit into a certificate.
const VALIDITY_YEARS_MAX: u64 = 1000;

/// The flags for TLS; none if nothing is served over it.
pub(super) fn build(
    values: &Values,
    from_file: bool,
    listening: &Listening<'_>,
    notes: &mut Vec<Note>,
) -> Result<Option<TlsConfig>, ConfigError> {
    let versions = versions(values)?;
    let suites = cipher_suites(values, versions, notes)?;
    let (certificate, key) = (values.text("cert-file"), values.text("key-file"));
    let given = !certificate.is_empty() || !key.is_empty();
    let auto = values.switch("auto-tls");
    if auto && given {
        notes.push(Note::new(Level::Warn, "ignoring client auto TLS since certs given"));
    }
    let for_clients = || listening.client.iter().chain(listening.client_http);
    warn_of_plain(values, for_clients().filter(|url| !url.tls), given || auto, notes);
    if !given && !auto {
        if let Some(url) = for_clients().find(|url| url.tls) {
            return Err(ConfigError::new(format!(
                "TLS key/cert (--cert-file, --key-file) must be provided for client url {url} with \
                 HTTPS scheme"
            )));
        }
        if listening.metrics.iter().any(|url| url.tls) {
            return Err(ConfigError::new(
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure \
                 url",
            ));
        }
    }
    if !for_clients().chain(listening.metrics).any(|url| url.tls) {
        return Ok(None);
    }
    check_pairs(values, given)?;
    let source = if given {
        CertificateSource::Files { certificate: certificate.into(), key: key.into() }
    } else {
        // Sockets in the file system are asked for as on this machine.
        let host = |url: &Endpoint| url.host().unwrap_or("localhost").to_owned();
        let hosts = for_clients().map(host).collect();
        CertificateSource::Generated { years: validity(values, from_file)?, hosts }
    };
    let trusted_ca = file(values, "trusted-ca-file");
    let names_users = values.switch("client-cert-auth");
    if names_users && trusted_ca.is_none() {
        return Err(ConfigError::new(
            "--client-cert-auth needs --trusted-ca-file: there is nothing else to check client \
             certificates by",
        ));
    }
    Ok(Some(TlsConfig {
        certificate: source,
        trusted_ca,
        names_users,
        revoked: file(values, "client-crl-file"),
        allowed_hostnames: values.list("client-cert-allowed-hostname"),
        versions,
        cipher_suites: suites,
    }))
}

fn file(values: &Values, name: &str) -> Option<PathBuf> {
    Some(values.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn warn_of_plain<'a>(
    values: &Values,
    urls: impl Iterator<Item = &'a Endpoint>,
    certificate: bool,
    notes: &mut Vec<Note>,
) {
    for url in urls {
        let mut warn = |text| {
            notes.push(Note::new(Level::Warn, text).with("client-url", url.to_string()));
        };
        if certificate {
            warn(
                "scheme is http or unix while key and cert files are present; ignoring key and \
                 cert files",
            );
        }
        if values.switch("client-cert-auth") {
            warn(
                "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert \
                 auth for this URL",
            );
        }
    }
}

/// Certificates and their keys come in pairs.
fn check_pairs(values: &Values, given: bool) -> Result<(), ConfigError> {
    let (certificate, key) = (values.text("cert-file"), values.text("key-file"));
    if given && (certificate.is_empty() || key.is_empty()) {
        return Err(ConfigError::new(format!(
            "KeyFile and CertFile must both be present[key: {key}, cert: {certificate}]"
        )));
    }
    let (certificate, key) = (values.text("client-cert-file"), values.text("client-key-file"));
    if certificate.is_empty() != key.is_empty() {
        return Err(ConfigError::new(format!(
            "ClientKeyFile and ClientCertFile must both be present or both absent: key: {key}, \
             cert: {certificate}]"
        )));
    }
    Ok(())
}

fn validity(values: &Values, from_file: bool) -> Result<u64, ConfigError> {
    match values.uint("self-signed-cert-validity") {
        0 if from_file => Ok(1),
        0 => Err(ConfigError::new("selfSignedCertValidity is invalid,it should be greater than 0")),
        years => Ok(years.min(VALIDITY_YEARS_MAX)),
    }
}

fn versions(values: &Values) -> Result<TlsVersions, ConfigError> {
    let read = |name: &str| match values.text(name) {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(2)),
        "TLS1.3" => Ok(Some(3)),
        other => Err(ConfigError::new(format!(
            "unexpected TLS version {other:?} (must be one of: TLS1.2, TLS1.3)"
        ))),
    };
    let (min, max) = (read("tls-min-version")?, read("tls-max-version")?);
    let (low, high) = (min.unwrap_or(2), max.unwrap_or(3));
    if low > high {
        return Err(ConfigError::new(format!(
            "min version ({}) is greater than max version ({})",
            values.text("tls-min-version"),
            values.text("tls-max-version")
        )));
    }
    Ok(TlsVersions { tls12: low == 2, tls13: high == 3 })
}

/// The suites that etcd knows by name: those of Go's TLS library. None has a number here if it is
/// not available: without forward secrecy, or without authenticated encryption.
const CIPHER_SUITES: &[(&str, Option<u16>)] = &[
    ("TLS_AES_128_GCM_SHA256", Some(0x1301)),
    ("TLS_AES_256_GCM_SHA384", Some(0x1302)),
    ("TLS_CHACHA20_POLY1305_SHA256", Some(0x1303)),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", Some(0xc02b)),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", Some(0xc02c)),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", Some(0xc02f)),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", Some(0xc030)),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", Some(0xcca8)),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", Some(0xcca8)),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", Some(0xcca9)),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", Some(0xcca9)),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", None),
    ("TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", None),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_RC4_128_SHA", None),
    ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_128_CBC_SHA256", None),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", None),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", None),
    ("TLS_RSA_WITH_RC4_128_SHA", None),
];

/// Numbers of the suites of TLS 1.3, which are not a matter of choice.
pub const TLS13_SUITES: std::ops::RangeInclusive<u16> = 0x1301..=0x1303;

fn cipher_suites(
    values: &Values,
    versions: TlsVersions,
    notes: &mut Vec<Note>,
) -> Result<Option<Vec<u16>>, ConfigError> {
    let text = values.text("cipher-suites");
    if text.is_empty() {
        return Ok(None);
    }
    if !versions.tls12 {
        return Err(ConfigError::new(
            "cipher suites cannot be configured when only TLS1.3 is enabled",
        ));
    }
    let (mut suites, mut missing) = (Vec::new(), Vec::new());
    for name in text.split(',') {
        match CIPHER_SUITES.iter().find(|(known, _)| *known == name) {
            Some((_, Some(number))) => suites.push(*number),
            Some((_, None)) => missing.push(name),
            None => {
                return Err(ConfigError::new(format!("unexpected TLS cipher suite {name:?}")));
            }
        }
    }
    if !missing.is_empty() {
        notes.push(
            Note::new(Level::Warn, "weak TLS cipher suites are not available and left out")
                .with("cipher-suites", missing.join(",")),
        );
    }
    if !versions.tls13 && suites.iter().all(|suite| TLS13_SUITES.contains(suite)) {
        return Err(ConfigError::new(
            "--cipher-suites leaves none that is available for TLS1.2, the only version enabled",
        ));
    }
    Ok(Some(suites))
}
