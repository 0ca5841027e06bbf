//! What is read from certificates beyond what checking them takes.

use std::time::{Duration, SystemTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The common name of a certificate's subject, the last one if there are several; empty if there is
/// none.
pub fn common_name(der: &[u8]) -> String {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return String::new() };
    let name = certificate.subject().iter_common_name().last();
    name.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned()
}

/// The time after which a certificate is not valid any more.
pub fn not_after(der: &[u8]) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let seconds = certificate.validity().not_after.timestamp();
    let since_epoch = Duration::from_secs(u64::try_from(seconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since_epoch)
}

/// A certificate's serial number, big-endian without leading zeros.
pub(super) fn serial(der: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(significant(certificate.raw_serial()).to_vec())
}

/// The number's bytes without leading zeros.
pub(super) fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SerialNumber};

    fn certificate(names: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.serial_number = Some(SerialNumber::from_slice(&[0, 0, 7, 0]));
        params.not_after = rcgen::date_time_ymd(2040, 1, 2);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn names_times_and_serial_numbers() {
        let der = certificate(&["ann"]);
        assert_eq!(common_name(&der), "ann");
        assert_eq!(serial(&der), Some(vec![7, 0]));
        let since_epoch =
            not_after(&der).and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        assert_eq!(since_epoch, Some(Duration::from_secs(2_209_075_200)));
        assert_eq!(common_name(&certificate(&[])), "");
    }

    #[test]
    fn what_is_no_certificate_has_nothing() {
        for der in [&b""[..], b"\x30\x03\x02\x01\x05", &[0xff; 64]] {
            assert_eq!(common_name(der), "");
            assert_eq!((not_after(der), serial(der)), (None, None));
        }
    }
}
