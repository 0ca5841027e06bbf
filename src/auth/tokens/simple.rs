//! Simple tokens: what they say is signed with a key that the keyspace holds.
//!
//! A token is two texts in base64 with a dot between them. The first is what it says: its version
//! (1 byte), when it was given (seconds since 1970, u64), the auth revision at which its user's
//! password was checked (u64), 8 random bytes, and the user's name to the end; numbers are
//! big-endian. The second is the HMAC-SHA256 of that.
//!
//! A token is good as long as all of this holds, and any gateway can tell:
//! - it is signed with the key that the keyspace has now (turning authentication on makes another);
//! - its user exists, and the password has not been changed since that auth revision (a user who was
//!   deleted and made again counts as changed);
//! - it was given, or used **here**, within the time to live. Its use at one gateway is not told to
//!   the others; they would refuse it, and its client would ask for another.

use super::TokenError;
use crate::auth::clock;
use crate::keyspace::auth::AuthState;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use parking_lot::Mutex;
use ring::hmac;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const VERSION: u8 = 1;
/// Version, time, revision, random bytes.
const HEAD: usize = 1 + 8 + 8 + 8;
/// The longest token that is looked at; names in requests are shorter.
const LENGTH_MAX: usize = 64 * 1024;
/// Tokens whose last use is remembered. Others live for their time to live and no longer.
const USES_MAX: usize = 100_000;
/// With fewer than this, nothing is looked through for what is over.
const SWEEP_MIN: usize = 1024;
/// Time between two such looks.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Bytes of the key that tokens are signed with.
pub const KEY_BYTES: usize = 32;

/// Gives and checks simple tokens.
pub struct SimpleTokens {
    ttl: Duration,
    /// When tokens, by the first half of their signature, were last used here.
    uses: Mutex<Uses>,
}

#[derive(Default)]
struct Uses {
    last: HashMap<[u8; 16], Instant>,
    /// At this many, those that are over are dropped, but not every moment.
    sweep_at: usize,
    swept: Option<Instant>,
}

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said<'a> {
    given: u64,
    revision: u64,
    user: &'a str,
}

impl<'a> Said<'a> {
    fn read(payload: &'a [u8]) -> Option<Self> {
        let (head, user) = payload.split_at_checked(HEAD)?;
        let (version, numbers) = head.split_first()?;
        if *version != VERSION {
            return None;
        }
        Some(Self {
            given: u64::from_be_bytes(numbers.get(..8)?.try_into().ok()?),
            revision: u64::from_be_bytes(numbers.get(8..16)?.try_into().ok()?),
            user: std::str::from_utf8(user).ok()?,
        })
    }

    fn write(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(HEAD + self.user.len());
        payload.push(VERSION);
        payload.extend(self.given.to_be_bytes());
        payload.extend(self.revision.to_be_bytes());
        payload.extend(rand::random::<[u8; 8]>());
        payload.extend(self.user.as_bytes());
        payload
    }
}

fn signing_key(state: &AuthState) -> Option<hmac::Key> {
    let key = (state.token_key.len() == KEY_BYTES).then_some(&state.token_key)?;
    Some(hmac::Key::new(hmac::HMAC_SHA256, key))
}

impl SimpleTokens {
    /// Tokens that are good for `ttl` after they were given, and after each use at one gateway.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, uses: Mutex::default() }
    }

    /// A token for a user whose password was checked in `state`.
    ///
    /// # Errors
    /// [`TokenError::NoKey`].
    pub fn give(&self, user: &str, state: &AuthState) -> Result<String, TokenError> {
        let said = Said { given: clock::unix_seconds(), revision: state.revision, user };
        sign(&said, state).ok_or(TokenError::NoKey)
    }

    /// Whose token this is, if it is good in `state`.
    pub fn check(&self, token: &str, state: &AuthState) -> Option<String> {
        self.check_at(token, state, clock::unix_seconds(), Instant::now())
    }

    fn check_at(&self, token: &str, state: &AuthState, now: u64, at: Instant) -> Option<String> {
        if token.len() > LENGTH_MAX {
            return None;
        }
        let (payload, signature) = token.split_once('.')?;
        let payload = BASE64.decode(payload).ok()?;
        let signature = BASE64.decode(signature).ok()?;
        // Compares in constant time.
        hmac::verify(&signing_key(state)?, &payload, &signature).ok()?;
        let said = Said::read(&payload)?;
        let user = state.user(said.user)?;
        if said.revision < user.credentials_since {
            return None;
        }
        // Clocks of gateways differ, so one may be from the future, but not by more than it lives.
        let fresh = said.given.abs_diff(now) <= self.ttl.as_secs();
        let id = signature.get(..16)?.try_into().ok()?;
        let used = self.uses.lock().renew(id, at, self.ttl, fresh);
        used.then(|| said.user.to_owned())
    }
}

fn sign(said: &Said<'_>, state: &AuthState) -> Option<String> {
    let payload = said.write();
    let signature = hmac::sign(&signing_key(state)?, &payload);
    let mut token = BASE64.encode(payload);
    token.push('.');
    BASE64.encode_string(signature, &mut token);
    Some(token)
}

impl Uses {
    /// Notes a use, if the token is fresh or was used not longer than `ttl` ago; returns whether.
    fn renew(&mut self, id: [u8; 16], at: Instant, ttl: Duration, fresh: bool) -> bool {
        let over = |last: &Instant| at.saturating_duration_since(*last) > ttl;
        if let Some(last) = self.last.get_mut(&id) {
            let good = fresh || !over(last);
            *last = if good { at } else { *last };
            return good;
        }
        if !fresh {
            return false;
        }
        let rested =
            self.swept.is_none_or(|swept| at.saturating_duration_since(swept) > SWEEP_PAUSE);
        if self.last.len() >= self.sweep_at.max(SWEEP_MIN) && rested {
            self.last.retain(|_, last| !over(last));
            self.sweep_at = (self.last.len() * 2).min(USES_MAX);
            self.swept = Some(at);
        }
        if self.last.len() < USES_MAX {
            self.last.insert(id, at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::auth::change;
    use crate::keyspace::command::Op;
    use crate::storage::Batch;
    use bytes::Bytes;
    use leaseway_proto::etcdserverpb as pb;
    use leaseway_proto::log::{AuthDisable, AuthEnable, UserAdd, UserPassword};
    use std::sync::Arc;

    const TTL: Duration = Duration::from_secs(300);

    fn apply(state: &mut Arc<AuthState>, op: Op) {
        change::apply(state, &mut Batch::default(), &op).unwrap();
    }

    fn add(state: &mut Arc<AuthState>, name: &str) {
        let user = UserAdd { name: name.into(), password_hash: Bytes::new(), no_password: false };
        apply(state, Op::UserAdd(user));
    }

    fn enable(state: &mut Arc<AuthState>, key: u8) {
        apply(state, Op::AuthEnable(AuthEnable { token_key: vec![key; KEY_BYTES].into() }));
    }

    fn enabled() -> Arc<AuthState> {
        let mut state = Arc::new(AuthState::default());
        add(&mut state, "root");
        let root = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
        apply(&mut state, Op::UserGrantRole(root));
        add(&mut state, "ann");
        enable(&mut state, 7);
        state
    }

    #[test]
    fn a_token_is_good_wherever_the_keyspace_is() {
        let state = enabled();
        let token = SimpleTokens::new(TTL).give("ann", &state).unwrap();
        assert!(token.bytes().all(|byte| byte.is_ascii_graphic()));
        let elsewhere = SimpleTokens::new(TTL);
        assert_eq!(elsewhere.check(&token, &state), Some("ann".into()));
        assert_ne!(token, SimpleTokens::new(TTL).give("ann", &state).unwrap());
    }

    #[test]
    fn what_ends_a_token() {
        let tokens = SimpleTokens::new(TTL);
        let state = enabled();
        let token = tokens.give("ann", &state).unwrap();
        let after = |ops: &[Op]| {
            let mut state = state.clone();
            ops.iter().for_each(|op| apply(&mut state, op.clone()));
            tokens.check(&token, &state)
        };
        let good = Some("ann".to_owned());
        let role = Op::RoleAdd(pb::AuthRoleAddRequest { name: "r".into() });
        let delete = Op::UserDelete(pb::AuthUserDeleteRequest { name: "ann".into() });
        let secret = |name: &str| {
            Op::UserPassword(UserPassword { name: name.into(), password_hash: Bytes::new() })
        };
        let again = Op::UserAdd(UserAdd { name: "ann".into(), ..UserAdd::default() });
        let on = |key| Op::AuthEnable(AuthEnable { token_key: vec![key; KEY_BYTES].into() });
        assert_eq!(after(&[]), good);
        assert_eq!(after(&[role]), good, "other changes of users and roles don't");
        assert_eq!(after(&[secret("root")]), good);
        assert_eq!(after(&[on(9)]), good, "it was on already");
        assert_eq!(after(&[secret("ann")]), None);
        assert_eq!(after(std::slice::from_ref(&delete)), None);
        assert_eq!(after(&[delete, again]), None);
        assert_eq!(after(&[Op::AuthDisable(AuthDisable {}), on(9)]), None);
        assert_eq!(tokens.check(&token, &AuthState::default()), None);
    }

    #[test]
    fn forged_and_broken_tokens() {
        let tokens = SimpleTokens::new(TTL);
        let state = enabled();
        let token = tokens.give("ann", &state).unwrap();
        let (payload, signature) = token.split_once('.').unwrap();
        let mut root = BASE64.decode(payload).unwrap();
        root.truncate(HEAD);
        root.extend(b"root");
        let root = BASE64.encode(root);
        let long = "a".repeat(LENGTH_MAX + 1);
        for broken in [
            "",
            ".",
            "a.b",
            payload,
            &format!("{payload}."),
            &format!(".{signature}"),
            &format!("{root}.{signature}"),
            &format!("{payload}.{payload}"),
            &format!("{token}.1"),
            &format!("{token}="),
            &token[..token.len() - 1],
            &long,
        ] {
            assert_eq!(tokens.check(broken, &state), None, "{broken}");
        }
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(changed == token || tokens.check(&changed, &state).is_none(), "at {at}");
        }
    }

    #[test]
    fn tokens_live_as_long_as_they_are_used() {
        let tokens = SimpleTokens::new(TTL);
        let state = enabled();
        let said = Said { given: 1_000_000, revision: state.revision, user: "ann" };
        let token = sign(&said, &state).unwrap();
        let start = Instant::now();
        let good = |tokens: &SimpleTokens, after: u64| {
            let at = start + Duration::from_secs(after);
            tokens.check_at(&token, &state, 1_000_000 + after, at).is_some()
        };
        assert!(good(&tokens, 0));
        assert!(good(&tokens, 250));
        assert!(good(&tokens, 500), "used 250 s ago");
        assert!(good(&tokens, 800));
        assert!(!good(&tokens, 1101), "not used for more than 300 s");
        assert!(!good(&tokens, 1102), "and asking was no use of it");
        let elsewhere = SimpleTokens::new(TTL);
        assert!(good(&elsewhere, 300));
        assert!(!good(&SimpleTokens::new(TTL), 301), "given too long ago, and never used here");
        let now = |now| SimpleTokens::new(TTL).check_at(&token, &state, now, start);
        assert!(now(1_000_000 - 300).is_some(), "a clock that is behind");
        assert!(now(1_000_000 - 301).is_none());
    }

    #[test]
    fn uses_are_bounded() {
        let mut uses = Uses::default();
        let start = Instant::now();
        let id = |number: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            id
        };
        for number in 0..USES_MAX + 10 {
            assert!(uses.renew(id(number), start, TTL, true));
        }
        assert_eq!(uses.last.len(), USES_MAX);
        let later = start + TTL * 2;
        assert!(uses.renew(id(usize::MAX), later, TTL, true));
        assert!(uses.last.len() <= SWEEP_MIN, "what is over has been dropped: {}", uses.last.len());
    }
}
