//! Users, roles, and what they may do.
//!
//! An [`AuthState`] is a value that never changes: the machine replaces it, the view publishes it
//! together with a revision, and whoever reads at that revision checks against it. So a read is
//! permitted by the very state that it reads, and a command by the state that it is applied to.
//! Deliberately absent: passwords in clear, tokens and everything else about who somebody is. By
//! the time a name gets here, in an [`Authority`], the gateway has made sure of that.

pub mod change;
pub mod ranges;
pub mod rights;

use crate::storage::tables::{meta, roles, users};
use crate::storage::{Snapshot, StorageError};
use bytes::Bytes;
use leaseway_proto::authpb;
pub use leaseway_proto::log::Authority;
use ranges::KeyRanges;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The user that must exist, with the role of the same name, before authentication can be on.
pub const ROOT: &str = "root";

/// The authority of the gateway itself: its own commands and reads are not a client's.
pub const GATEWAY: Authority = Authority { user: String::new(), auth_revision: 0, gateway: true };

/// Users and roles at one point of the log.
#[derive(Clone, PartialEq)]
pub struct AuthState {
    /// Whether authentication is required.
    pub enabled: bool,
    /// Rises by one with every change of users, roles and permissions, and when authentication is
    /// turned off. From 1.
    pub revision: u64,
    /// What tokens are signed with; empty until authentication was turned on for the first time.
    pub token_key: Bytes,
    users: BTreeMap<String, Arc<User>>,
    roles: BTreeMap<String, Arc<authpb::Role>>,
}

/// A user.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// bcrypt's hash of the password, in its usual text form; empty when there is none.
    pub password_hash: Bytes,
    /// Whether the user is one without a password, who can't authenticate with one.
    pub no_password: bool,
    /// Roles, sorted.
    pub roles: Vec<String>,
    /// Auth revision of the last change of the password: tokens given before it are void.
    pub credentials_since: u64,
    read: KeyRanges,
    write: KeyRanges,
}

impl User {
    /// Whether the user has the root role, and with it every right.
    pub fn is_root(&self) -> bool {
        self.has_role(ROOT)
    }

    /// Whether the user has a role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|granted| granted == role)
    }

    /// The user in etcd's form.
    pub fn to_message(&self, name: &str) -> authpb::User {
        authpb::User {
            name: Bytes::copy_from_slice(name.as_bytes()),
            password: self.password_hash.clone(),
            roles: self.roles.clone(),
            options: Some(authpb::UserAddOptions { no_password: self.no_password }),
        }
    }
}

// Neither what passwords nor what tokens are checked against belongs in a log.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("no_password", &self.no_password)
            .field("roles", &self.roles)
            .field("credentials_since", &self.credentials_since)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthState")
            .field("enabled", &self.enabled)
            .field("revision", &self.revision)
            .field("users", &self.users)
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

impl Default for AuthState {
    fn default() -> Self {
        Self {
            enabled: false,
            revision: 1,
            token_key: Bytes::new(),
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }
}

impl AuthState {
    /// A user by name.
    pub fn user(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// All users by name.
    pub fn users(&self) -> impl Iterator<Item = (&str, &User)> {
        self.users.iter().map(|(name, user)| (name.as_str(), &**user))
    }

    /// A role by name.
    pub fn role(&self, name: &str) -> Option<&authpb::Role> {
        self.roles.get(name).map(|role| &**role)
    }

    /// All roles by name.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &authpb::Role)> {
        self.roles.iter().map(|(name, role)| (name.as_str(), &**role))
    }

    /// Reads what is stored.
    ///
    /// # Errors
    /// I/O errors and damage.
    pub fn load(snapshot: &dyn Snapshot) -> Result<Self, StorageError> {
        let stored = meta::auth(snapshot)?.unwrap_or_default();
        let mut state = Self {
            enabled: stored.enabled,
            revision: stored.revision,
            token_key: stored.token_key,
            ..Self::default()
        };
        for (name, role) in roles::all(snapshot)? {
            state.roles.insert(name, Arc::new(role));
        }
        for row in users::all(snapshot)? {
            let user = User {
                password_hash: row.user.password,
                no_password: row.user.options.is_some_and(|options| options.no_password),
                roles: row.user.roles,
                credentials_since: row.credentials_since,
                read: KeyRanges::default(),
                write: KeyRanges::default(),
            };
            state.users.insert(row.name, Arc::new(state.with_rights(user)));
        }
        Ok(state)
    }

    fn stored(&self) -> meta::Auth {
        meta::Auth {
            enabled: self.enabled,
            revision: self.revision,
            token_key: self.token_key.clone(),
        }
    }

    /// The user with the rights that its roles give it.
    fn with_rights(&self, mut user: User) -> User {
        use authpb::permission::Type::{Read, Readwrite, Write};
        let of = |kind: authpb::permission::Type| {
            let granted = user.roles.iter().filter_map(|role| self.roles.get(role));
            let granted = granted.flat_map(|role| &role.key_permission);
            KeyRanges::union(granted.filter(move |permission| {
                permission.perm_type == kind as i32 || permission.perm_type == Readwrite as i32
            }))
        };
        (user.read, user.write) = (of(Read), of(Write));
        user
    }
}
