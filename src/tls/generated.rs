//! Certificates that a server makes for itself, where etcd keeps them: in `fixtures/client` of the
//! data directory.

use super::{TlsError, certificate, pem, read};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::sign::CertifiedKey;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FOLDER: &str = "fixtures/client";
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The files of a generated certificate and its key; made if they aren't there, can't be used or
/// have expired.
pub(super) fn files(
    data_dir: &Path,
    hosts: &[String],
    years: u64,
) -> Result<(PathBuf, PathBuf), TlsError> {
    let folder = data_dir.join(FOLDER);
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    match usable(&certificate, &key) {
        Ok(()) => return Ok((certificate, key)),
        Err(TlsError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        Err(why) => tracing::warn!(%why, "replacing the generated certificate"),
    }
    let failed = |source| TlsError::Write { path: folder.clone(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    let made = make(hosts, years)
        .map_err(|error| TlsError::Together(format!("cannot generate a certificate: {error}")))?;
    // The key first: a certificate without its key would be found unusable, and replaced.
    write(&key, &made.key)?;
    write(&certificate, &made.certificate)?;
    tracing::warn!(path = %certificate.display(), years, "generated a certificate");
    Ok((certificate, key))
}

/// Whether both can be used, together: a process that ends between the two files leaves a new key with an old
/// certificate.
fn usable(certificate: &Path, key: &Path) -> Result<(), TlsError> {
    let chain = pem::chain(certificate, &read(certificate)?)?;
    let secret = pem::key(key, &read(key)?)?;
    let provider = super::provider();
    let signer = provider.key_provider.load_private_key(secret).map_err(|error| {
        // One that etcd made is on a curve that isn't available here.
        TlsError::content(key, error.to_string())
    })?;
    let pair = CertifiedKey::new(chain.clone(), signer);
    pair.keys_match().map_err(|error| TlsError::content(key, error.to_string()))?;
    let end = chain.first().and_then(|der| certificate::not_after(der));
    match end {
        Some(end) if end > super::today() => Ok(()),
        _ => Err(TlsError::content(certificate, "the certificate has expired")),
    }
}

struct Made {
    certificate: String,
    key: String,
}

fn make(hosts: &[String], years: u64) -> Result<Made, rcgen::Error> {
    let mut names = Vec::new();
    for host in hosts {
        let unspecified = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let also: &[&str] = if unspecified { &["localhost", "127.0.0.1", "::1"] } else { &[] };
        names.push(host.clone());
        names.extend(also.iter().map(ToString::to_string));
    }
    names.sort();
    names.dedup();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "leaseway");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = super::today();
    params.not_before = now.into();
    let validity = YEAR.saturating_mul(u32::try_from(years).unwrap_or(u32::MAX));
    params.not_after = now.checked_add(validity).unwrap_or(now + YEAR).into();
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok(Made { certificate, key: key.serialize_pem() })
}

/// Writes a file for this user's eyes only, whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), TlsError> {
    let unfinished = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(&unfinished)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&unfinished, path))
        .and_then(|()| match path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        })
        .map_err(|source| TlsError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_certificate_is_made_once_and_again_when_it_is_of_no_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = ["127.0.0.1".to_owned(), "localhost".to_owned(), "0.0.0.0".to_owned()];
        let made = || files(dir.path(), &hosts, 1).expect("files");
        let (certificate, key) = made();
        assert_eq!(certificate, dir.path().join("fixtures/client/cert.pem"));
        let mode = std::fs::metadata(&key).expect("the key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read(&certificate).expect("a certificate");
        made();
        assert_eq!(std::fs::read(&certificate).expect("a certificate"), text);

        let chain = pem::chain(&certificate, &text).expect("PEM");
        let left = certificate::not_after(&chain[0])
            .and_then(|end| end.duration_since(super::super::today()).ok())
            .expect("valid");
        assert!(left < YEAR && left > YEAR - Duration::from_secs(60), "{left:?}");

        std::fs::write(&key, "nonsense").expect("written");
        made();
        assert_ne!(std::fs::read(&certificate).expect("a certificate"), text);
    }

    #[test]
    fn a_pair_that_is_not_one_is_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = ["localhost".to_owned()];
        let made = |years| files(dir.path(), &hosts, years).expect("files");
        let (certificate, key) = made(1);
        let other = make(&hosts, 1).expect("a certificate");
        let half = std::fs::read_to_string(&certificate).expect("a certificate");
        let half = &half[..half.len() / 2];
        let cases: [(&str, &dyn Fn()); 6] = [
            ("the key of another", &|| std::fs::write(&key, &other.key).expect("written")),
            ("no key", &|| std::fs::remove_file(&key).expect("removed")),
            ("no certificate", &|| std::fs::remove_file(&certificate).expect("removed")),
            ("half a certificate", &|| std::fs::write(&certificate, half).expect("written")),
            ("an empty key", &|| std::fs::write(&key, "").expect("written")),
            ("one that has expired", &|| {
                let expired = make(&hosts, 0).expect("a certificate");
                std::fs::write(&certificate, &expired.certificate).expect("written");
                std::fs::write(&key, &expired.key).expect("written");
            }),
        ];
        for (name, spoil) in cases {
            // What a process has left that ended while it wrote.
            std::fs::write(certificate.with_extension("new"), "half").expect("written");
            spoil();
            assert!(usable(&certificate, &key).is_err(), "{name}");
            made(1);
            assert!(usable(&certificate, &key).is_ok(), "{name}");
            assert!(!certificate.with_extension("new").exists(), "{name}");
        }
    }
}
