//! Commands that change users and roles.

use super::ranges::KeyRanges;
use super::{AuthState, ROOT, User};
use crate::keyspace::command::Op;
use crate::keyspace::error::Refusal;
use crate::storage::Batch;
use crate::storage::tables::{meta, roles, users};
use bytes::Bytes;
use leaseway_proto::authpb::{Permission, Role};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::log::{AuthEnable, UserAdd, UserPassword};
use std::sync::Arc;

/// Whether an operation changes users or roles.
pub fn concerns(op: &Op) -> bool {
    matches!(
        op,
        Op::AuthEnable(_)
            | Op::AuthDisable(_)
            | Op::UserAdd(_)
            | Op::UserDelete(_)
            | Op::UserPassword(_)
            | Op::UserGrantRole(_)
            | Op::UserRevokeRole(_)
            | Op::RoleAdd(_)
            | Op::RoleDelete(_)
            | Op::RoleGrantPermission(_)
            | Op::RoleRevokePermission(_)
    )
}

/// Applies an operation that [`concerns`] users or roles: a new state takes the place of the old
/// one, and its rows are staged. A refusal changes nothing.
///
/// # Errors
/// The refusal.
pub fn apply(state: &mut Arc<AuthState>, batch: &mut Batch, op: &Op) -> Result<(), Refusal> {
    match op {
        Op::AuthEnable(request) => enable(state, batch, request),
        Op::AuthDisable(_) => {
            disable(state, batch);
            Ok(())
        }
        Op::UserAdd(request) => add_user(state, batch, request),
        Op::UserDelete(request) => delete_user(state, batch, &request.name),
        Op::UserPassword(request) => change_password(state, batch, request),
        Op::UserGrantRole(request) => grant_role(state, batch, request),
        Op::UserRevokeRole(request) => revoke_role(state, batch, request),
        Op::RoleAdd(request) => add_role(state, batch, &request.name),
        Op::RoleDelete(request) => delete_role(state, batch, &request.role),
        Op::RoleGrantPermission(request) => grant_permission(state, batch, request),
        Op::RoleRevokePermission(request) => revoke_permission(state, batch, request),
        _ => Err(Refusal::UnknownCommand),
    }
}

fn enable(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &AuthEnable,
) -> Result<(), Refusal> {
    if state.enabled && !state.token_key.is_empty() {
        return Ok(());
    }
    let root = state.user(ROOT).ok_or(Refusal::RootUserMissing)?;
    if !root.is_root() {
        return Err(Refusal::RootRoleMissing);
    }
    let state = Arc::make_mut(state);
    state.enabled = true;
    state.token_key = request.token_key.clone();
    meta::put_auth(batch, &state.stored());
    Ok(())
}

fn disable(state: &mut Arc<AuthState>, batch: &mut Batch) {
    if state.enabled {
        let state = Arc::make_mut(state);
        state.enabled = false;
        state.next_revision(batch);
    }
}

fn add_user(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &UserAdd,
) -> Result<(), Refusal> {
    if request.name.is_empty() {
        return Err(Refusal::UserEmpty);
    }
    if state.user(&request.name).is_some() {
        return Err(Refusal::UserExists);
    }
    let state = Arc::make_mut(state);
    let revision = state.next_revision(batch);
    let user = User {
        password_hash: if request.no_password {
            Bytes::new()
        } else {
            request.password_hash.clone()
        },
        no_password: request.no_password,
        roles: Vec::new(),
        credentials_since: revision,
        read: KeyRanges::default(),
        write: KeyRanges::default(),
    };
    state.put_user(batch, &request.name, user);
    Ok(())
}

fn delete_user(state: &mut Arc<AuthState>, batch: &mut Batch, name: &str) -> Result<(), Refusal> {
    if state.enabled && name == ROOT {
        return Err(Refusal::InvalidAuthManagement);
    }
    if state.user(name).is_none() {
        return Err(Refusal::UserNotFound);
    }
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.users.remove(name);
    users::delete(batch, name);
    Ok(())
}

fn change_password(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &UserPassword,
) -> Result<(), Refusal> {
    let user = state.user(&request.name).ok_or(Refusal::UserNotFound)?;
    let mut user = User::clone(user);
    if !user.no_password {
        user.password_hash = request.password_hash.clone();
    }
    let state = Arc::make_mut(state);
    user.credentials_since = state.next_revision(batch);
    state.put_user(batch, &request.name, user);
    Ok(())
}

fn grant_role(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &pb::AuthUserGrantRoleRequest,
) -> Result<(), Refusal> {
    let user = state.user(&request.user).ok_or(Refusal::UserNotFound)?;
    // The root role needs no definition.
    if request.role != ROOT && state.role(&request.role).is_none() {
        return Err(Refusal::RoleNotFound);
    }
    if user.has_role(&request.role) {
        return Ok(());
    }
    let mut user = User::clone(user);
    user.roles.push(request.role.clone());
    user.roles.sort_unstable();
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.put_user(batch, &request.user, user);
    Ok(())
}

fn revoke_role(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &pb::AuthUserRevokeRoleRequest,
) -> Result<(), Refusal> {
    if state.enabled && request.name == ROOT && request.role == ROOT {
        return Err(Refusal::InvalidAuthManagement);
    }
    let user = state.user(&request.name).ok_or(Refusal::UserNotFound)?;
    if !user.has_role(&request.role) {
        return Err(Refusal::RoleNotGranted);
    }
    let mut user = User::clone(user);
    user.roles.retain(|role| *role != request.role);
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.put_user(batch, &request.name, user);
    Ok(())
}

fn add_role(state: &mut Arc<AuthState>, batch: &mut Batch, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::RoleEmpty);
    }
    if state.role(name).is_some() {
        return Err(Refusal::RoleExists);
    }
    let role = Role { name: Bytes::copy_from_slice(name.as_bytes()), key_permission: Vec::new() };
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.put_role(batch, name, role);
    Ok(())
}

fn delete_role(state: &mut Arc<AuthState>, batch: &mut Batch, name: &str) -> Result<(), Refusal> {
    if state.enabled && name == ROOT {
        return Err(Refusal::InvalidAuthManagement);
    }
    if state.role(name).is_none() {
        return Err(Refusal::RoleNotFound);
    }
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.roles.remove(name);
    roles::delete(batch, name);
    for holder in state.holders(name) {
        let Some(user) = state.user(&holder) else { continue };
        let mut user = User::clone(user);
        user.roles.retain(|role| role != name);
        state.put_user(batch, &holder, user);
    }
    Ok(())
}

/// Whether a permission can be granted for this: one key, a range that holds some, or a key and
/// everything behind it.
fn is_grantable(permission: &Permission) -> bool {
    let (key, end) = (&permission.key, &permission.range_end);
    !key.is_empty() && (end.is_empty() || key < end || end[..] == [0])
}

fn grant_permission(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &pb::AuthRoleGrantPermissionRequest,
) -> Result<(), Refusal> {
    let granted = request.perm.as_ref().ok_or(Refusal::PermissionNotGiven)?;
    if !is_grantable(granted) {
        return Err(Refusal::InvalidAuthManagement);
    }
    let mut role = state.role(&request.name).ok_or(Refusal::RoleNotFound)?.clone();
    let permissions = &mut role.key_permission;
    // Only the first permission with this start is looked at, as in etcd: of several ranges with one
    // start, only that one is replaced, the others are added again.
    let at = permissions.partition_point(|permission| permission.key < granted.key);
    match permissions.get_mut(at) {
        Some(same) if same.key == granted.key && same.range_end == granted.range_end => {
            same.perm_type = granted.perm_type;
        }
        _ => {
            permissions.push(granted.clone());
            permissions.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.put_role(batch, &request.name, role);
    Ok(())
}

fn revoke_permission(
    state: &mut Arc<AuthState>,
    batch: &mut Batch,
    request: &pb::AuthRoleRevokePermissionRequest,
) -> Result<(), Refusal> {
    let mut role = state.role(&request.role).ok_or(Refusal::RoleNotFound)?.clone();
    let before = role.key_permission.len();
    role.key_permission.retain(|permission| {
        permission.key != request.key || permission.range_end != request.range_end
    });
    if role.key_permission.len() == before {
        return Err(Refusal::PermissionNotGranted);
    }
    let state = Arc::make_mut(state);
    state.next_revision(batch);
    state.put_role(batch, &request.role, role);
    Ok(())
}

impl AuthState {
    /// Begins the next auth revision; returns it.
    fn next_revision(&mut self, batch: &mut Batch) -> u64 {
        self.revision += 1;
        meta::put_auth(batch, &self.stored());
        self.revision
    }

    fn put_user(&mut self, batch: &mut Batch, name: &str, user: User) {
        let user = self.with_rights(user);
        users::put(batch, name, &user.to_message(name), user.credentials_since);
        self.users.insert(name.to_owned(), Arc::new(user));
    }

    fn put_role(&mut self, batch: &mut Batch, name: &str, role: Role) {
        roles::put(batch, name, &role);
        self.roles.insert(name.to_owned(), Arc::new(role));
        // Their rows hold the role's name only, which has not changed.
        for holder in self.holders(name) {
            let Some(user) = self.users.get(&holder) else { continue };
            let user = self.with_rights(User::clone(user));
            self.users.insert(holder, Arc::new(user));
        }
    }

    fn holders(&self, role: &str) -> Vec<String> {
        let holders = self.users.iter().filter(|(_, user)| user.has_role(role));
        holders.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
