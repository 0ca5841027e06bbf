//! The flags of authentication.

use super::sources::Values;
use super::value::parse_duration;
use super::{AuthConfig, ConfigError, JwtOptions, Level, Note, TokenConfig};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const BCRYPT_COSTS: std::ops::RangeInclusive<u64> = 4..=31;
const BCRYPT_COST_DEFAULT: u32 = 10;
const TOKEN_TTL_DEFAULT: Duration = Duration::from_secs(300);
/// What is understood in `--auth-token=jwt,...`.
const JWT_OPTIONS: [&str; 4] = ["sign-method", "pub-key", "priv-key", "ttl"];

pub(super) fn build(values: &Values, notes: &mut Vec<Note>) -> Result<AuthConfig, ConfigError> {
    Ok(AuthConfig { token: token(values, notes)?, bcrypt_cost: bcrypt_cost(values, notes) })
}

fn bcrypt_cost(values: &Values, notes: &mut Vec<Note>) -> u32 {
    let given = values.uint("bcrypt-cost");
    if let Some(cost) = u32::try_from(given).ok().filter(|_| BCRYPT_COSTS.contains(&given)) {
        return cost;
    }
    notes.push(
        Note::new(Level::Warn, "use default bcrypt cost instead of the invalid given cost")
            .with("min-cost", BCRYPT_COSTS.start().to_string())
            .with("max-cost", BCRYPT_COSTS.end().to_string())
            .with("default-cost", BCRYPT_COST_DEFAULT.to_string())
            .with("given-cost", given.to_string()),
    );
    BCRYPT_COST_DEFAULT
}

fn token(values: &Values, notes: &mut Vec<Note>) -> Result<TokenConfig, ConfigError> {
    let text = values.text("auth-token");
    let bad = |why: &str| ConfigError::new(format!("--auth-token {text:?}: {why}"));
    let mut parts = text.split(',');
    let kind = parts.next().unwrap_or_default();
    let mut options = BTreeMap::new();
    for part in parts {
        let pair: Vec<&str> = part.split('=').collect();
        let [name, value] = pair[..] else {
            return Err(bad("options have the form name=value"));
        };
        if options.insert(name, value).is_some() {
            return Err(bad("an option is given twice"));
        }
    }
    match kind {
        "" => Ok(TokenConfig::Off),
        "simple" => {
            let ttl = match values.uint("auth-token-ttl") {
                0 => TOKEN_TTL_DEFAULT,
                seconds => Duration::from_secs(seconds),
            };
            Ok(TokenConfig::Simple { ttl })
        }
        "jwt" => jwt(&options, notes).map(TokenConfig::Jwt).map_err(|why| bad(&why)),
        _ => Err(bad("the kind of token must be simple or jwt")),
    }
}

fn jwt(options: &BTreeMap<&str, &str>, notes: &mut Vec<Note>) -> Result<JwtOptions, String> {
    let unknown = options.keys().copied().filter(|name| !JWT_OPTIONS.contains(name));
    let unknown: Vec<&str> = unknown.collect();
    if !unknown.is_empty() {
        notes.push(
            Note::new(Level::Warn, "unknown JWT options are ignored")
                .with("keys", unknown.join(",")),
        );
    }
    let given = |name: &str| options.get(name).copied().filter(|value| !value.is_empty());
    let ttl = match given("ttl") {
        None => TOKEN_TTL_DEFAULT,
        Some(text) => {
            let nanos = parse_duration(text)?;
            Duration::from_nanos(u64::try_from(nanos).map_err(|_| "ttl is negative")?)
        }
    };
    Ok(JwtOptions {
        sign_method: given("sign-method").ok_or("sign-method is missing")?.to_owned(),
        public_key: given("pub-key").map(PathBuf::from),
        private_key: given("priv-key").map(PathBuf::from),
        ttl,
    })
}
