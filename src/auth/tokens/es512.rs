//! The one method of signing that `ring` has not got: ECDSA on P-521 with SHA-512.
//!
//! Keys and signatures have the forms that `ring` gives and takes for the other curves: a public key is
//! the uncompressed point, a signature its two numbers one after the other, each of [`FIELD`] bytes.

use p521::ecdsa::signature::{Signer as _, Verifier as _};
use p521::ecdsa::{Signature, SigningKey, VerifyingKey};

/// Bytes of a number below the curve's order.
const FIELD: usize = 66;

/// What an uncompressed point begins with.
const UNCOMPRESSED: u8 = 4;

/// A key that signs.
pub struct Secret(SigningKey);

impl Secret {
    /// The key with this secret number. Its public half is computed; one that is given must be it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(secret: &[u8], public: Option<&[u8]>) -> Result<Self, String> {
        if secret.len() != FIELD {
            return Err(format!("its secret number has {} bytes, not {FIELD}", secret.len()));
        }
        let key = SigningKey::from_slice(secret)
            .map_err(|_| "its secret number is none of the curve's".to_owned())?;
        let key = Self(key);
        match public {
            Some(given) if given != key.public() => Err("its halves don't belong together".into()),
            _ => Ok(key),
        }
    }

    /// Its public half: the uncompressed point.
    pub fn public(&self) -> Vec<u8> {
        self.0.verifying_key().to_sec1_point(false).as_bytes().to_vec()
    }

    /// The signature of a message, if there is one: the number that may not be drawn twice comes
    /// from the key and the message (RFC 6979).
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let signature: Signature = self.0.try_sign(message).ok()?;
        Some(signature.to_bytes().to_vec())
    }
}

/// A key that checks signatures.
#[derive(Debug)]
pub struct Checker(VerifyingKey);

impl Checker {
    /// The key with this uncompressed point, if it is one of the curve's.
    pub fn new(point: &[u8]) -> Option<Self> {
        // Other forms of points are not taken on other curves either.
        if point.first() != Some(&UNCOMPRESSED) {
            return None;
        }
        VerifyingKey::from_sec1_bytes(point).ok().map(Self)
    }

    /// Whether the signature is this key's for the message.
    pub fn accepts(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify(message, &signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// The key of RFC 6979, A.2.7.
    fn example() -> Secret {
        let secret = bytes(
            "00FAD06DAA62BA3B25D2FB40133DA757205DE67F5BB0018FEE8C86E1B68C7E75CAA8\
             96EB32F1F47C70855836A6D16FCC1466F6D8FBEC67DB89EC0C08B0E996B83538",
        );
        Secret::new(&secret, None).unwrap()
    }

    #[test]
    fn the_standards_example() {
        let signature = bytes(
            "00C328FAFCBD79DD77850370C46325D987CB525569FB63C5D3BC53950E6D4C5F174E\
             25A1EE9017B5D450606ADD152B534931D7D4E8455CC91F9B15BF05EC36E377FA\
             00617CCE7CF5064806C467F678D3B4080D6F1CC50AF26CA209417308281B68AF2826\
             23EAA63E5B5C0723D8B8C37FF0777B1A20F8CCB1DCCC43997F1EE0E44DA4A67A",
        );
        assert_eq!(signature.len(), 2 * FIELD);
        assert_eq!(example().sign(b"sample"), Some(signature.clone()));
        let checker = Checker::new(&example().public()).unwrap();
        assert!(checker.accepts(b"sample", &signature));
        assert!(!checker.accepts(b"simple", &signature));
        assert!(!checker.accepts(b"sample", &signature[..2 * FIELD - 1]));
        assert!(!checker.accepts(b"sample", &[&signature[..], &[0]].concat()));
        let swapped = [&signature[FIELD..], &signature[..FIELD]].concat();
        assert!(!checker.accepts(b"sample", &swapped));
    }

    #[test]
    fn nothing_signs_with_zeros_or_more_than_the_order() {
        let checker = Checker::new(&example().public()).unwrap();
        let one = [vec![0; FIELD - 1], vec![1]].concat();
        let zero = vec![0; FIELD];
        let beyond = vec![0xff; FIELD];
        for (r, s) in
            [(&zero, &zero), (&one, &zero), (&zero, &one), (&beyond, &one), (&one, &beyond)]
        {
            assert!(!checker.accepts(b"sample", &[&r[..], &s[..]].concat()));
        }
    }

    #[test]
    fn what_is_no_key_is_none() {
        let public = example().public();
        for wrong in
            [vec![0; FIELD], vec![0xff; FIELD], vec![1; FIELD - 1], vec![0; FIELD + 1], vec![]]
        {
            assert!(Secret::new(&wrong, None).is_err(), "{wrong:?}");
        }
        let one = [vec![0; FIELD - 1], vec![1]].concat();
        assert!(Secret::new(&one, None).is_ok());
        assert!(Secret::new(&one, Some(&public)).is_err_and(|why| why.contains("belong together")));

        assert_eq!(public.len(), 2 * FIELD + 1);
        let mut elsewhere = public.clone();
        elsewhere[2 * FIELD] ^= 1;
        let compressed = [&[2 | public[2 * FIELD] & 1], &public[1..=FIELD]].concat();
        for wrong in [&elsewhere[..], &compressed, &public[..2 * FIELD], &[UNCOMPRESSED], &[0], &[]]
        {
            assert!(Checker::new(wrong).is_none(), "{wrong:?}");
        }
    }
}
