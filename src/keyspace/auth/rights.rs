//! What a request needs to be allowed, and whether it is.

use super::{AuthState, Authority, User};
use crate::keyspace::error::Refusal;
use crate::keyspace::leases::LeaseTable;
use crate::keyspace::range::KeyRange;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;

/// What somebody may do with keys. Nothing is refused before a key is asked for: a request without
/// any is anybody's.
#[derive(Clone, Copy, Debug)]
pub enum Rights<'a> {
    /// Everything: authentication is off, or this is root or the gateway.
    All,
    /// Nothing, for this reason.
    Nothing(Refusal),
    /// What the user's roles give.
    Of(&'a User),
}

impl Rights<'_> {
    /// Whether a range of keys may be read.
    ///
    /// # Errors
    /// Why not.
    pub fn read(&self, key: &[u8], range_end: &[u8]) -> Result<(), Refusal> {
        match self {
            Self::All => Ok(()),
            Self::Nothing(refusal) => Err(*refusal),
            Self::Of(user) if user.read.cover(KeyRange::new(key, range_end)) => Ok(()),
            Self::Of(_) => Err(Refusal::PermissionDenied),
        }
    }

    /// Whether a range of keys may be written.
    ///
    /// # Errors
    /// Why not.
    pub fn write(&self, key: &[u8], range_end: &[u8]) -> Result<(), Refusal> {
        match self {
            Self::All => Ok(()),
            Self::Nothing(refusal) => Err(*refusal),
            Self::Of(user) if user.write.cover(KeyRange::new(key, range_end)) => Ok(()),
            Self::Of(_) => Err(Refusal::PermissionDenied),
        }
    }

    /// Whether every key of a lease may be read.
    ///
    /// # Errors
    /// Why not.
    pub fn read_lease(&self, leases: &LeaseTable, id: i64) -> Result<(), Refusal> {
        self.all_keys(leases, id, |user| &user.read)
    }

    /// Whether every key of a lease may be written.
    ///
    /// # Errors
    /// Why not.
    pub fn write_lease(&self, leases: &LeaseTable, id: i64) -> Result<(), Refusal> {
        self.all_keys(leases, id, |user| &user.write)
    }

    fn all_keys(
        &self,
        leases: &LeaseTable,
        id: i64,
        granted: impl Fn(&User) -> &super::ranges::KeyRanges,
    ) -> Result<(), Refusal> {
        match self {
            Self::All => Ok(()),
            Self::Nothing(refusal) if leases.key_count(id) > 0 => Err(*refusal),
            Self::Of(user) if leases.any_key_in(id, granted(user).gaps()) => {
                Err(Refusal::PermissionDenied)
            }
            Self::Nothing(_) | Self::Of(_) => Ok(()),
        }
    }

    /// Whether a range request may be answered.
    ///
    /// # Errors
    /// Why not.
    pub fn range(&self, request: &pb::RangeRequest) -> Result<(), Refusal> {
        self.read(&request.key, &request.range_end)
    }

    /// Whether a put may be done: with the key's new value, its old one if that is asked for, and a
    /// lease whose end would delete keys.
    ///
    /// # Errors
    /// Why not.
    pub fn put(&self, request: &pb::PutRequest, leases: &LeaseTable) -> Result<(), Refusal> {
        if matches!(self, Self::All) {
            return Ok(());
        }
        self.write(&request.key, &[])?;
        self.write_lease(leases, request.lease)?;
        if request.prev_kv { self.read(&request.key, &[]) } else { Ok(()) }
    }

    /// Whether a range may be deleted.
    ///
    /// # Errors
    /// Why not.
    pub fn delete(&self, request: &pb::DeleteRangeRequest) -> Result<(), Refusal> {
        self.write(&request.key, &request.range_end)?;
        if request.prev_kv { self.read(&request.key, &request.range_end) } else { Ok(()) }
    }

    /// Whether a transaction may run: all that any of its branches could do, taken or not.
    ///
    /// # Errors
    /// Why not.
    pub fn txn(&self, request: &pb::TxnRequest, leases: &LeaseTable) -> Result<(), Refusal> {
        if matches!(self, Self::All) {
            return Ok(());
        }
        for compare in &request.compare {
            self.read(&compare.key, &compare.range_end)?;
        }
        for op in request.success.iter().chain(&request.failure) {
            match &op.request {
                Some(Request::RequestRange(range)) => self.range(range)?,
                Some(Request::RequestPut(put)) => self.put(put, leases)?,
                Some(Request::RequestDeleteRange(delete)) => self.delete(delete)?,
                Some(Request::RequestTxn(nested)) => self.txn(nested, leases)?,
                None => {}
            }
        }
        Ok(())
    }
}

impl AuthState {
    /// What `authority` may do with keys. Nobody (`None`) may do nothing while authentication is on.
    pub fn rights(&self, authority: Option<&Authority>) -> Rights<'_> {
        if !self.enabled {
            return Rights::All;
        }
        match authority {
            Some(authority) if authority.gateway => Rights::All,
            None | Some(Authority { auth_revision: 0, .. }) => Rights::Nothing(Refusal::UserEmpty),
            Some(old) if old.auth_revision < self.revision => {
                Rights::Nothing(Refusal::AuthOldRevision)
            }
            Some(current) => match self.user(&current.user) {
                None => Rights::Nothing(Refusal::PermissionDenied),
                Some(user) if user.is_root() => Rights::All,
                Some(user) => Rights::Of(user),
            },
        }
    }

    /// Whether `authority` is root's. As in etcd an outdated auth revision does not matter here.
    ///
    /// # Errors
    /// Why not.
    pub fn admin(&self, authority: Option<&Authority>) -> Result<(), Refusal> {
        if !self.enabled {
            return Ok(());
        }
        match authority {
            Some(authority) if authority.gateway => Ok(()),
            Some(authority) if !authority.user.is_empty() => match self.user(&authority.user) {
                None => Err(Refusal::UserNotFound),
                Some(user) if user.is_root() => Ok(()),
                Some(_) => Err(Refusal::PermissionDenied),
            },
            _ => Err(Refusal::UserEmpty),
        }
    }

    /// Whether this is somebody.
    ///
    /// # Errors
    /// [`Refusal::UserEmpty`].
    pub fn anybody(&self, authority: Option<&Authority>) -> Result<(), Refusal> {
        if self.enabled && authority.is_none() { Err(Refusal::UserEmpty) } else { Ok(()) }
    }

    /// Whether a read done by `authority` in this state stands: a token that names another auth
    /// revision than this one is to be renewed.
    ///
    /// # Errors
    /// [`Refusal::AuthOldRevision`].
    pub fn current(&self, authority: Option<&Authority>) -> Result<(), Refusal> {
        match authority {
            Some(named) if self.enabled && !named.gateway && named.auth_revision != 0 => {
                let current = named.auth_revision == self.revision;
                if current { Ok(()) } else { Err(Refusal::AuthOldRevision) }
            }
            _ => Ok(()),
        }
    }

    /// Whether somebody is an administrator, or has the rights that are asked for.
    ///
    /// # Errors
    /// Why not, as far as the rights go.
    pub fn admin_or(
        &self,
        authority: Option<&Authority>,
        permit: impl FnOnce(Rights<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if self.admin(authority).is_ok() { Ok(()) } else { permit(self.rights(authority)) }
    }

    /// Whether all keys of a lease may be written, which its end would delete.
    ///
    /// # Errors
    /// Why not.
    pub fn write_lease(
        &self,
        authority: Option<&Authority>,
        leases: &LeaseTable,
        id: i64,
    ) -> Result<(), Refusal> {
        self.admin_or(authority, |rights| rights.write_lease(leases, id))
    }

    /// Whether all keys of a lease may be read.
    ///
    /// # Errors
    /// Why not.
    pub fn read_lease(
        &self,
        authority: Option<&Authority>,
        leases: &LeaseTable,
        id: i64,
    ) -> Result<(), Refusal> {
        self.admin_or(authority, |rights| rights.read_lease(leases, id))
    }
}
