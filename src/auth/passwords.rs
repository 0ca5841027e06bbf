//! Passwords: hashed and checked with bcrypt, a few at a time and off the serving threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// What bcrypt reads of a password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// The lowest cost that bcrypt has.
const COST_MIN: u32 = 4;
/// Callers that may wait for their turn.
const WAITING_MAX: usize = 4096;
/// The highest cost that a login of nobody is given because some user's hash has it: a hash from elsewhere may have
/// any, and with 31 each such login would take days.
const STAND_IN_MAX: u32 = 14;

/// What bcrypt reads of a password that somebody comes with, however long it was: many may have to wait.
#[derive(Clone)]
pub struct Password(Box<[u8]>);

impl From<String> for Password {
    fn from(text: String) -> Self {
        let read = text.len().min(PASSWORD_BYTES_MAX);
        Self(text.as_bytes()[..read].into())
    }
}

/// The cost of a hash in bcrypt's text form, as far as it has one.
fn cost_of(hash: &[u8]) -> Option<u32> {
    // Version, cost, and both salt and hash: `$2a$10$...`.
    let mut parts = std::str::from_utf8(hash).ok()?.split('$').skip(2);
    parts.next()?.parse().ok()
}

/// What a login that fails hashes after all that it did for `spent`: so much that together it is the work
/// of `cost`, where each step doubles the work.
fn rest(spent: Option<u32>, cost: u32) -> Range<u32> {
    spent.unwrap_or(cost)..spent.map_or(cost + 1, |_| cost)
}

/// Why a password could not be hashed or checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// More than [`PASSWORD_BYTES_MAX`].
    #[error("the password is too long")]
    TooLong,
    /// Too many others wait.
    #[error("too many passwords are being checked")]
    Busy,
    /// bcrypt or its thread failed.
    #[error("hashing failed")]
    Failed,
}

/// Hashes and checks passwords.
pub struct Passwords {
    cost: u32,
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Passwords {
    /// Hashes with this cost, 4 to 31; each step doubles the work. At most half of the processors
    /// work on passwords at any time.
    pub fn new(cost: u32) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = Arc::new(Semaphore::new((processors / 2).max(1)));
        Self { cost, turns, waiting: AtomicUsize::new(0) }
    }

    /// A hash of `password`, with a salt of its own, in bcrypt's text form.
    ///
    /// # Errors
    /// See [`PasswordError`].
    pub async fn hash(&self, password: String) -> Result<Vec<u8>, PasswordError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(PasswordError::TooLong);
        }
        let cost = self.cost;
        self.in_turn(move || {
            let hash =
                bcrypt::hash_with_result(password, cost).map_err(|_| PasswordError::Failed)?;
            // The version's letter that etcd writes; all mean the same for new hashes.
            Ok(hash.format_for_version(bcrypt::Version::TwoA).into_bytes())
        })
        .await?
    }

    /// The cost that a login of nobody should have where users have these hashes: the highest, since a login that
    /// fails takes as long as that at least.
    pub fn stand_in<'a>(&self, hashes: impl Iterator<Item = &'a [u8]>) -> u32 {
        let highest = hashes.filter_map(cost_of).max();
        highest.map_or(self.cost, |cost| cost.clamp(COST_MIN, self.cost.max(STAND_IN_MAX)))
    }

    /// Whether `password` has this hash. Without a hash (there is no such user) the answer is no. Each no comes
    /// after the work of `stand_in`, or of the hash if that is more: how long it takes does not tell who exists.
    ///
    /// # Errors
    /// See [`PasswordError`].
    pub async fn verify(
        &self,
        password: Password,
        hash: Option<Vec<u8>>,
        stand_in: u32,
    ) -> Result<bool, PasswordError> {
        self.in_turn(move || {
            let Password(password) = password;
            let mut spent = None;
            if let Some(hash) = hash.as_ref().and_then(|hash| std::str::from_utf8(hash).ok())
                && let Ok(good) = bcrypt::verify(&password, hash)
            {
                if good {
                    return true;
                }
                spent = cost_of(hash.as_bytes());
            }
            for cost in rest(spent, stand_in) {
                let _ = bcrypt::hash_with_result(&password, cost);
            }
            false
        })
        .await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PasswordError> {
        let _waiting = Waiting::begin(&self.waiting)?;
        let turn = self.turns.clone().acquire_owned().await.map_err(|_| PasswordError::Failed)?;
        let working = tokio::task::spawn_blocking(move || {
            // Held to the end even if the caller has gone: the processor is busy.
            let _turn = turn;
            work()
        });
        working.await.map_err(|_| PasswordError::Failed)
    }
}

/// Counts a caller, also when it is cancelled.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Result<Self, PasswordError> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let waiting = Self(count);
        if before < WAITING_MAX { Ok(waiting) } else { Err(PasswordError::Busy) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn good(passwords: &Passwords, password: &str, hash: Option<&[u8]>) -> bool {
        let hash = hash.map(<[u8]>::to_vec);
        passwords.verify(password.to_owned().into(), hash, 4).await.unwrap()
    }

    #[tokio::test]
    async fn passwords_are_told_from_others() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("secret".into()).await.unwrap();
        assert!(hash.starts_with(b"$2a$04$"), "{hash:?}");
        assert!(good(&passwords, "secret", Some(&hash)).await);
        assert!(!good(&passwords, "Secret", Some(&hash)).await);
        assert!(!good(&passwords, "secret", None).await);
        assert_ne!(hash, passwords.hash("secret".into()).await.unwrap(), "salted");
        for broken in [&b""[..], b"secret", b"$2a$04$", &hash[..59], b"\xff\xfe"] {
            assert!(!good(&passwords, "secret", Some(broken)).await);
        }
    }

    #[tokio::test]
    async fn lengths() {
        let passwords = Passwords::new(4);
        let long = "x".repeat(PASSWORD_BYTES_MAX + 1);
        assert_eq!(passwords.hash(long.clone()).await, Err(PasswordError::TooLong));
        for password in ["", &"x".repeat(PASSWORD_BYTES_MAX)] {
            let hash = passwords.hash(password.into()).await.unwrap();
            assert!(good(&passwords, password, Some(&hash)).await);
            // bcrypt does not read the rest, in etcd as here.
            assert_eq!(good(&passwords, &long, Some(&hash)).await, !password.is_empty());
        }
        assert_eq!(Password::from("\u{20ac}".repeat(1 << 20)).0.len(), PASSWORD_BYTES_MAX);
    }

    /// Made by Go's package, as etcd's are.
    #[tokio::test]
    async fn hashes_of_etcd() {
        let hash = b"$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga";
        let passwords = Passwords::new(4);
        assert!(good(&passwords, "allmine", Some(hash)).await);
        assert!(!good(&passwords, "alltheirs", Some(hash)).await);
        assert_eq!(cost_of(hash), Some(10));
    }

    #[test]
    fn each_failure_is_as_much_work() {
        let work = |costs: Range<u32>| costs.map(|cost| 1u64 << cost).sum::<u64>();
        for stand_in in 4..=14 {
            assert_eq!(work(rest(None, stand_in)), 1 << stand_in, "nobody");
            for spent in 4..=stand_in {
                assert_eq!((1 << spent) + work(rest(Some(spent), stand_in)), 1 << stand_in);
            }
            assert_eq!(work(rest(Some(stand_in + 1), stand_in)), 0, "a hash that costs more");
        }
    }

    #[test]
    fn nobody_costs_as_much_as_the_most_expensive_user() {
        let hash = |cost: u32| format!("$2a${cost:02}$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.w");
        let stand_in = |own, costs: &[u32]| {
            let hashes: Vec<_> = costs.iter().map(|cost| hash(*cost)).collect();
            Passwords::new(own).stand_in(hashes.iter().map(String::as_bytes))
        };
        assert_eq!(stand_in(10, &[]), 10);
        assert_eq!(stand_in(10, &[4, 4]), 4, "not what new ones would have");
        assert_eq!(stand_in(4, &[8, 10, 8]), 10);
        assert_eq!(stand_in(4, &[10, 31]), STAND_IN_MAX, "one from elsewhere");
        assert_eq!(stand_in(16, &[31]), 16);
        assert_eq!(stand_in(4, &[0]), COST_MIN);
        assert_eq!(Passwords::new(9).stand_in([&b""[..], b"hash", b"$2a$"].into_iter()), 9);
    }

    #[tokio::test]
    async fn no_more_than_so_many_wait() {
        let count = AtomicUsize::new(0);
        let all: Vec<_> = (0..WAITING_MAX).map(|_| Waiting::begin(&count).unwrap()).collect();
        assert_eq!(Waiting::begin(&count).err(), Some(PasswordError::Busy));
        drop(all);
        assert!(Waiting::begin(&count).is_ok());
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
