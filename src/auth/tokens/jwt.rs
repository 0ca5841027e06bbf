//! JSON Web Tokens, signed with a key from a file, as etcd gives and takes them.
//!
//! A token says `username`, `revision` (the auth revision at which it was given) and `exp`. Others
//! may give them too, whoever has the key. Unlike a simple token one is not ended by a change of its
//! user: its revision becomes old, which is refused wherever keys are read or written.

use super::keys::{Family, Private, Public};
use super::{TokenError, es512};
use crate::auth::clock;
use crate::config::JwtOptions;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{RsaEncoding, UnparsedPublicKey, VerificationAlgorithm};
use ring::{hmac, signature as sig};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The longest token that is looked at.
const LENGTH_MAX: usize = 64 * 1024;

/// How tokens are signed.
enum Signer {
    Hmac(hmac::Key),
    Public { private: Option<Private>, checker: Checker },
}

/// What checks signatures that are made with a private key.
enum Checker {
    Ring(UnparsedPublicKey<Vec<u8>>),
    P521(Box<es512::Checker>),
}

impl Checker {
    fn accepts(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ring(key) => key.verify(message, signature).is_ok(),
            Self::P521(key) => key.accepts(message, signature),
        }
    }
}

/// A method of signing, by its name in tokens and options.
struct Method {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    Hmac(hmac::Algorithm),
    Rsa(&'static dyn RsaEncoding, &'static sig::RsaParameters),
    Other(Family, &'static dyn VerificationAlgorithm),
    P521,
}

fn method(name: &str) -> Option<Method> {
    let (name, kind) = match name {
        "HS256" => ("HS256", Kind::Hmac(hmac::HMAC_SHA256)),
        "HS384" => ("HS384", Kind::Hmac(hmac::HMAC_SHA384)),
        "HS512" => ("HS512", Kind::Hmac(hmac::HMAC_SHA512)),
        "RS256" => ("RS256", Kind::Rsa(&sig::RSA_PKCS1_SHA256, &sig::RSA_PKCS1_2048_8192_SHA256)),
        "RS384" => ("RS384", Kind::Rsa(&sig::RSA_PKCS1_SHA384, &sig::RSA_PKCS1_2048_8192_SHA384)),
        "RS512" => ("RS512", Kind::Rsa(&sig::RSA_PKCS1_SHA512, &sig::RSA_PKCS1_2048_8192_SHA512)),
        "PS256" => ("PS256", Kind::Rsa(&sig::RSA_PSS_SHA256, &sig::RSA_PSS_2048_8192_SHA256)),
        "PS384" => ("PS384", Kind::Rsa(&sig::RSA_PSS_SHA384, &sig::RSA_PSS_2048_8192_SHA384)),
        "PS512" => ("PS512", Kind::Rsa(&sig::RSA_PSS_SHA512, &sig::RSA_PSS_2048_8192_SHA512)),
        "ES256" => ("ES256", Kind::Other(Family::P256, &sig::ECDSA_P256_SHA256_FIXED)),
        "ES384" => ("ES384", Kind::Other(Family::P384, &sig::ECDSA_P384_SHA384_FIXED)),
        "ES512" => ("ES512", Kind::P521),
        "EdDSA" => ("EdDSA", Kind::Other(Family::Ed25519, &sig::ED25519)),
        _ => return None,
    };
    Some(Method { name, kind })
}

/// Gives and checks JSON Web Tokens.
pub struct Jwt {
    name: &'static str,
    signer: Signer,
    rsa: Option<&'static dyn RsaEncoding>,
    ttl: Duration,
    random: SystemRandom,
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("--auth-token: {}: {error}", path.display()))
}

fn as_text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "it is not PEM".into())
}

impl Jwt {
    /// Reads the key files that the options name.
    ///
    /// # Errors
    /// One line saying what is wrong with an option or a file.
    pub fn new(options: &JwtOptions) -> Result<Self, String> {
        let method = method(&options.sign_method).ok_or_else(|| {
            format!("--auth-token: sign-method {:?} is not supported", options.sign_method)
        })?;
        let private = options.private_key.as_deref().map(read_file).transpose()?;
        let public = options.public_key.as_deref().map(read_file).transpose()?;
        let mut rsa = None;
        let signer = match method.kind {
            Kind::Hmac(algorithm) => {
                let key =
                    private.filter(|key| !key.is_empty()).ok_or_else(|| missing("priv-key"))?;
                Signer::Hmac(hmac::Key::new(algorithm, &key))
            }
            Kind::Rsa(encoding, verify) => {
                rsa = Some(encoding);
                pair(private, public, Family::Rsa, Some(verify))?
            }
            Kind::Other(family, verify) => pair(private, public, family, Some(verify))?,
            Kind::P521 => pair(private, public, Family::P521, None)?,
        };
        Ok(Self { name: method.name, signer, rsa, ttl: options.ttl, random: SystemRandom::new() })
    }

    /// A token for a user at an auth revision.
    ///
    /// # Errors
    /// There is only a public key; signing failed.
    pub fn give(&self, user: &str, revision: u64) -> Result<String, TokenError> {
        let header = json!({ "alg": self.name, "typ": "JWT" });
        let expires = clock::unix_seconds().saturating_add(self.ttl.as_secs());
        let claims = json!({ "exp": expires, "revision": revision, "username": user });
        self.sign(&header, &claims)
    }

    fn sign(&self, header: &Value, claims: &Value) -> Result<String, TokenError> {
        let mut token = BASE64.encode(header.to_string());
        token.push('.');
        BASE64.encode_string(claims.to_string(), &mut token);
        let signature = self.signature(token.as_bytes())?;
        token.push('.');
        BASE64.encode_string(signature, &mut token);
        Ok(token)
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, TokenError> {
        let failed = |_| TokenError::NoKey;
        let private = match &self.signer {
            Signer::Hmac(key) => return Ok(hmac::sign(key, message).as_ref().to_vec()),
            Signer::Public { private, .. } => private.as_ref().ok_or(TokenError::VerifyOnly)?,
        };
        match private {
            Private::Rsa(pair) => {
                let encoding = self.rsa.ok_or(TokenError::NoKey)?;
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(encoding, &self.random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            Private::Elliptic(pair) => {
                Ok(pair.sign(&self.random, message).map_err(failed)?.as_ref().to_vec())
            }
            Private::P521(key) => key.sign(message).ok_or(TokenError::NoKey),
            Private::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }

    /// Whose token this is, and the auth revision that it names, if it is good.
    pub fn check(&self, token: &str) -> Option<(String, u64)> {
        self.check_at(token, clock::unix_seconds())
    }

    fn check_at(&self, token: &str, now: u64) -> Option<(String, u64)> {
        if token.len() > LENGTH_MAX {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header: Value = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.get("alg")?.as_str()? != self.name {
            return None;
        }
        let signature = BASE64.decode(signature).ok()?;
        let good = match &self.signer {
            // Compares in constant time.
            Signer::Hmac(key) => hmac::verify(key, message.as_bytes(), &signature).is_ok(),
            Signer::Public { checker, .. } => checker.accepts(message.as_bytes(), &signature),
        };
        if !good {
            return None;
        }
        let claims: Value = serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()?;
        let now = now as f64;
        if time(&claims, "exp")?.satisfies(|expires| now >= expires)
            || time(&claims, "nbf")?.satisfies(|begins| now < begins)
        {
            return None;
        }
        let user = claims.get("username")?.as_str()?;
        // A number of any form; what is no revision becomes the nearest.
        let revision = claims.get("revision")?.as_f64()?;
        Some((user.to_owned(), revision as u64))
    }
}

/// A time in claims, where absent (or 0, as etcd has it) is fine and anything malformed is not.
enum Time {
    Absent,
    At(f64),
}

impl Time {
    fn satisfies(self, holds: impl FnOnce(f64) -> bool) -> bool {
        match self {
            Self::Absent => false,
            Self::At(seconds) => holds(seconds),
        }
    }
}

fn time(claims: &Value, name: &str) -> Option<Time> {
    match claims.as_object()?.get(name) {
        None => Some(Time::Absent),
        Some(value) => value.as_f64().map(|at| if at == 0.0 { Time::Absent } else { Time::At(at) }),
    }
}

fn missing(option: &str) -> String {
    format!("--auth-token: {option} is missing")
}

/// `verify`: how `ring` checks signatures, unless it can't, as on P-521.
fn pair(
    private: Option<Vec<u8>>,
    public: Option<Vec<u8>>,
    family: Family,
    verify: Option<&'static dyn VerificationAlgorithm>,
) -> Result<Signer, String> {
    let told = |option: &str, why: String| format!("--auth-token: {option}: {why}");
    let private = private
        .map(|pem| Private::read(as_text(&pem)?, family))
        .transpose()
        .map_err(|why| told("priv-key", why))?;
    let public = public
        .map(|pem| Public::read(as_text(&pem)?, family))
        .transpose()
        .map_err(|why| told("pub-key", why))?;
    let derived = private.as_ref().map(Private::public);
    let public = match (public, derived) {
        (Some(given), Some(derived)) if given != derived => {
            return Err("--auth-token: pub-key and priv-key don't belong together".into());
        }
        (Some(public), _) | (None, Some(public)) => public,
        (None, None) => return Err(missing("pub-key or priv-key")),
    };
    let checker = match verify {
        Some(algorithm) => Checker::Ring(UnparsedPublicKey::new(algorithm, public.0)),
        None => {
            let key = es512::Checker::new(&public.0)
                .ok_or_else(|| told("pub-key", "its point is not on P-521".into()))?;
            Checker::P521(Box::new(key))
        }
    };
    Ok(Signer::Public { private, checker })
}

#[cfg(test)]
mod tests;
