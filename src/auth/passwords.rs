//! Passwords: hashed and checked with bcrypt, a few at a time and off the serving threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// What bcrypt reads of a password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// Callers that may wait for their turn.
const WAITING_MAX: usize = 4096;

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

    /// Whether `password` has this hash. Without a hash (there is no such user) the answer is no,
    /// after the same time.
    ///
    /// # Errors
    /// See [`PasswordError`].
    pub async fn verify(
        &self,
        password: String,
        hash: Option<Vec<u8>>,
    ) -> Result<bool, PasswordError> {
        let cost = self.cost;
        self.in_turn(move || match hash {
            Some(hash) => {
                let hash = std::str::from_utf8(&hash).unwrap_or_default();
                bcrypt::verify(password, hash).unwrap_or(false)
            }
            None => {
                let _ = bcrypt::hash_with_result(password, cost);
                false
            }
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

    #[tokio::test]
    async fn passwords_are_told_from_others() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("secret".into()).await.unwrap();
        assert!(hash.starts_with(b"$2a$04$"), "{hash:?}");
        assert!(passwords.verify("secret".into(), Some(hash.clone())).await.unwrap());
        assert!(!passwords.verify("Secret".into(), Some(hash.clone())).await.unwrap());
        assert!(!passwords.verify("secret".into(), None).await.unwrap());
        assert_ne!(hash, passwords.hash("secret".into()).await.unwrap(), "salted");
        for broken in [&b""[..], b"secret", b"$2a$04$", &hash[..59], b"\xff\xfe"] {
            assert!(!passwords.verify("secret".into(), Some(broken.to_vec())).await.unwrap());
        }
    }

    #[tokio::test]
    async fn lengths() {
        let passwords = Passwords::new(4);
        let long = "x".repeat(PASSWORD_BYTES_MAX + 1);
        assert_eq!(passwords.hash(long).await, Err(PasswordError::TooLong));
        for password in ["", &"x".repeat(PASSWORD_BYTES_MAX)] {
            let hash = passwords.hash(password.into()).await.unwrap();
            assert!(passwords.verify(password.into(), Some(hash)).await.unwrap());
        }
    }

    /// Made by Go's package, as etcd's are.
    #[tokio::test]
    async fn hashes_of_etcd() {
        let hash = b"$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga";
        let passwords = Passwords::new(4);
        assert!(passwords.verify("allmine".into(), Some(hash.to_vec())).await.unwrap());
        assert!(!passwords.verify("alltheirs".into(), Some(hash.to_vec())).await.unwrap());
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
