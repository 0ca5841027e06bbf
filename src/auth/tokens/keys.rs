//! Keys for signing tokens, from files in the forms that etcd reads.
//!
//! Private keys: PKCS #8, PKCS #1 (RSA) or SEC 1 (elliptic curves), in PEM. Public keys: a public key
//! (SPKI or PKCS #1) or a certificate, in PEM.

use super::der::{Der, pem_blocks, tag};
use super::es512;
use ring::rand::SystemRandom;
use ring::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RsaKeyPair,
};

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ELLIPTIC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// A family of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// RSA, with either padding.
    Rsa,
    /// The curve P-256.
    P256,
    /// The curve P-384.
    P384,
    /// The curve P-521.
    P521,
    /// Ed25519.
    Ed25519,
}

impl Family {
    fn curve(self) -> Option<Curve> {
        let (id, ring) = match self {
            Self::P256 => (P256, Some(&signature::ECDSA_P256_SHA256_FIXED_SIGNING)),
            Self::P384 => (P384, Some(&signature::ECDSA_P384_SHA384_FIXED_SIGNING)),
            Self::P521 => (P521, None),
            Self::Rsa | Self::Ed25519 => return None,
        };
        Some(Curve { id, ring })
    }
}

/// One of the curves.
#[derive(Clone, Copy)]
struct Curve {
    /// Its object identifier.
    id: &'static [u8],
    /// How `ring` signs on it, unless it can't, as on P-521.
    ring: Option<&'static EcdsaSigningAlgorithm>,
}

impl Curve {
    fn key(self, secret: &[u8], public: Option<&[u8]>) -> Result<Private, String> {
        let Some(ring) = self.ring else {
            return es512::Secret::new(secret, public).map(|key| Private::P521(Box::new(key)));
        };
        let public = public.ok_or("its public half is missing; openssl adds it")?;
        let random = SystemRandom::new();
        EcdsaKeyPair::from_private_key_and_public_key(ring, secret, public, &random)
            .map(Private::Elliptic)
            .map_err(|error| error.to_string())
    }
}

/// A key that signs.
pub enum Private {
    /// RSA.
    Rsa(RsaKeyPair),
    /// One of the curves that `ring` has.
    Elliptic(EcdsaKeyPair),
    /// P-521.
    P521(Box<es512::Secret>),
    /// Ed25519.
    Ed25519(Ed25519KeyPair),
}

impl Private {
    /// The key in a PEM file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(pem: &str, family: Family) -> Result<Self, String> {
        let mut problem = "there is no private key in it".to_owned();
        for (label, content) in pem_blocks(pem) {
            let read = match (label.as_str(), family.curve()) {
                ("RSA PRIVATE KEY", None) if family == Family::Rsa => {
                    RsaKeyPair::from_der(&content).map(Self::Rsa).map_err(|e| e.to_string())
                }
                ("PRIVATE KEY", None) if family == Family::Rsa => {
                    RsaKeyPair::from_pkcs8(&content).map(Self::Rsa).map_err(|e| e.to_string())
                }
                ("PRIVATE KEY", None) => Ed25519KeyPair::from_pkcs8_maybe_unchecked(&content)
                    .map(Self::Ed25519)
                    .map_err(|error| error.to_string()),
                ("PRIVATE KEY", Some(curve)) => elliptic_pkcs8(&content, curve),
                ("EC PRIVATE KEY", Some(curve)) => elliptic_sec1(&content, curve, false),
                _ => continue,
            };
            match read {
                Ok(key) => return Ok(key),
                Err(why) => problem = format!("its {label} can't be used: {why}"),
            }
        }
        Err(problem)
    }

    /// Its public half, as [`Public`] holds it.
    pub fn public(&self) -> Public {
        Public(match self {
            Self::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Self::Elliptic(pair) => pair.public_key().as_ref().to_vec(),
            Self::P521(key) => key.public(),
            Self::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
        })
    }
}

fn elliptic_pkcs8(content: &[u8], curve: Curve) -> Result<Private, String> {
    let inner = || {
        let mut key = Der(Der(content).expect(tag::SEQUENCE)?);
        key.expect(tag::INTEGER)?;
        let mut algorithm = Der(key.expect(tag::SEQUENCE)?);
        let wanted = algorithm.expect(tag::OBJECT_ID)? == ELLIPTIC
            && algorithm.expect(tag::OBJECT_ID)? == curve.id;
        Some((wanted, key.expect(tag::OCTET_STRING)?))
    };
    match inner() {
        Some((true, sec1)) => elliptic_sec1(sec1, curve, true),
        Some((false, _)) => Err("it is of another kind, or on another curve".into()),
        None => Err("it is malformed".into()),
    }
}

/// `curve_known`: the surroundings have named the curve, so that the key itself need not.
fn elliptic_sec1(content: &[u8], curve: Curve, curve_known: bool) -> Result<Private, String> {
    let inner = || {
        let mut key = Der(Der(content).expect(tag::SEQUENCE)?);
        key.expect(tag::INTEGER)?;
        let secret = key.expect(tag::OCTET_STRING)?;
        let named = key.optional(tag::CONTEXT_0).map(|named| Der(named).expect(tag::OBJECT_ID));
        let wanted = match named {
            Some(named) => named? == curve.id,
            None => curve_known,
        };
        let public = key.optional(tag::CONTEXT_1).map(|public| Der(public).bit_string());
        Some((wanted, secret, public.flatten()))
    };
    match inner() {
        Some((true, secret, public)) => curve.key(secret, public),
        Some((false, ..)) => Err("it is on another curve".into()),
        None => Err("it is malformed".into()),
    }
}

/// A key that checks signatures, in the form that `ring` takes: for RSA the PKCS #1 structure, for
/// curves the uncompressed point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public(pub Vec<u8>);

impl Public {
    /// The key in a PEM file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(pem: &str, family: Family) -> Result<Self, String> {
        let mut problem = "there is no public key in it";
        for (label, content) in pem_blocks(pem) {
            let found = match label.as_str() {
                "PUBLIC KEY" => spki(&content, family),
                "RSA PUBLIC KEY" if family == Family::Rsa => Some(content.clone()),
                "CERTIFICATE" if family != Family::Ed25519 => {
                    certificate_spki(&content).and_then(|key| spki(key, family))
                }
                _ => continue,
            };
            match found {
                Some(key) => return Ok(Self(key)),
                None => problem = "it is malformed, of another kind, or on another curve",
            }
        }
        Err(problem.into())
    }
}

fn spki(content: &[u8], family: Family) -> Option<Vec<u8>> {
    let mut key = Der(Der(content).expect(tag::SEQUENCE)?);
    let mut algorithm = Der(key.expect(tag::SEQUENCE)?);
    let kind = algorithm.expect(tag::OBJECT_ID)?;
    let wanted = match family {
        Family::Rsa => kind == RSA,
        Family::Ed25519 => kind == ED25519,
        Family::P256 | Family::P384 | Family::P521 => {
            kind == ELLIPTIC && algorithm.expect(tag::OBJECT_ID)? == family.curve()?.id
        }
    };
    wanted.then(|| key.bit_string().map(<[u8]>::to_vec))?
}

/// The public key within a certificate.
fn certificate_spki(content: &[u8]) -> Option<&[u8]> {
    let mut signed = Der(Der(Der(content).expect(tag::SEQUENCE)?).expect(tag::SEQUENCE)?);
    signed.optional(tag::CONTEXT_0);
    signed.expect(tag::INTEGER)?;
    // Signature algorithm, issuer, validity, subject.
    for _ in 0..4 {
        signed.expect(tag::SEQUENCE)?;
    }
    // The whole element, with its head.
    let start = signed.0;
    signed.expect(tag::SEQUENCE)?;
    start.get(..start.len() - signed.0.len())
}
