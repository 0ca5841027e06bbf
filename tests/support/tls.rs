//! Certificates for tests, and a client that talks TLS.

#![allow(dead_code)]

use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leaseway::tls::client::{ClientFiles, configure};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::PATIENCE;

/// Somebody who gives out certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What a certificate says.
#[derive(Clone)]
pub struct Subject<'a> {
    pub common_name: &'a str,
    /// Host names and addresses.
    pub hosts: &'a [&'a str],
    pub serial: u64,
    pub expired: bool,
}

impl<'a> Subject<'a> {
    /// One that is valid, without hosts.
    pub fn named(common_name: &'a str) -> Subject<'a> {
        Subject {
            common_name,
            hosts: &[],
            serial: rand::random_range(1..=u64::MAX),
            expired: false,
        }
    }

    /// A server on this machine.
    pub fn server() -> Subject<'static> {
        Subject { hosts: &["localhost", "127.0.0.1"], ..Subject::named("server") }
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2049, 1, 1);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Its own certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate and its key.
    pub fn issue(&self, subject: &Subject<'_>) -> (String, String) {
        let hosts: Vec<String> = subject.hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).expect("hosts");
        params.distinguished_name = named(subject.common_name);
        params.serial_number = Some(SerialNumber::from(subject.serial));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(if subject.expired { 2021 } else { 2049 }, 1, 1);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &*self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// A list of revoked certificates, in DER.
    pub fn revoke(&self, serials: &[u64]) -> Vec<u8> {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2049, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).expect("a list").der().to_vec()
    }
}

/// A directory of certificates.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file as a careful administrator does: whole or not at all.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let (path, unfinished) = (self.path(name), self.path("unfinished"));
        std::fs::write(&unfinished, content).expect("written");
        std::fs::rename(&unfinished, &path).expect("renamed");
        path
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn issue(&self, authority: &Authority, name: &str, subject: &Subject<'_>) {
        let (certificate, key) = authority.issue(subject);
        self.write(&format!("{name}.pem"), certificate);
        self.write(&format!("{name}.key"), key);
    }

    /// `--flag=PATH` for a file here.
    pub fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }

    /// A client that trusts `ca` and shows the pair of that name.
    pub fn client(&self, ca: &str, own: Option<&str>) -> ClientFiles {
        let pair = |name| (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        ClientFiles { ca: Some(self.path(ca)), certificate: own.map(pair), trust_anybody: false }
    }
}

/// A connection with TLS.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Connects, with the handshake done and, in TLS 1.3, the server's opinion of it heard.
///
/// # Errors
/// What went wrong on the way.
pub fn connect(port: u16, files: &ClientFiles, protocols: &[&str]) -> io::Result<Tls> {
    let config = configure(files, protocols).map_err(io::Error::other)?;
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let mut session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(session, stream))
}

/// Asks over HTTP/1.1; the whole answer.
///
/// # Errors
/// What went wrong on the way.
pub fn get(port: u16, files: &ClientFiles, path: &str) -> io::Result<String> {
    let mut stream = connect(port, files, &["http/1.1"])?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    match io::Read::read_to_end(&mut stream, &mut answer) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The certificate that a server shows.
pub fn shown(port: u16, files: &ClientFiles) -> Vec<u8> {
    let stream = connect(port, files, &["h2"]).expect("connects");
    let chain = stream.conn.peer_certificates().expect("a chain");
    chain.first().expect("a certificate").to_vec()
}

/// The content of the first block of a PEM file.
pub fn der(path: &Path) -> Vec<u8> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    CertificateDer::from_pem_file(path).expect("a certificate").to_vec()
}
