use super::*;
use crate::keyspace::auth::Authority;
use crate::keyspace::command::Op;
use crate::keyspace::leases::LeaseTable;
use leaseway_proto::authpb::permission::Type;
use leaseway_proto::log::AuthDisable;

struct Auth(Arc<AuthState>);

impl Auth {
    fn new() -> Self {
        Self(Arc::new(AuthState::default()))
    }

    fn did(&mut self, op: Op) -> Result<(), Refusal> {
        let before = self.0.clone();
        let mut batch = Batch::default();
        let result = apply(&mut self.0, &mut batch, &op);
        if result.is_err() {
            assert_eq!(before, self.0, "a refusal changes nothing");
            assert!(batch.is_empty());
        }
        assert_eq!(before == self.0, batch.is_empty(), "{op:?}: what changes is stored");
        assert!(self.0.revision - before.revision <= 1);
        result
    }

    fn add(&mut self, name: &str) -> Result<(), Refusal> {
        let password_hash = Bytes::from_static(b"hash");
        self.did(Op::UserAdd(UserAdd { name: name.into(), password_hash, no_password: false }))
    }

    fn role(&mut self, name: &str) -> Result<(), Refusal> {
        self.did(Op::RoleAdd(pb::AuthRoleAddRequest { name: name.into() }))
    }

    fn grant(&mut self, user: &str, role: &str) -> Result<(), Refusal> {
        let (user, role) = (user.into(), role.into());
        self.did(Op::UserGrantRole(pb::AuthUserGrantRoleRequest { user, role }))
    }

    fn revoke(&mut self, name: &str, role: &str) -> Result<(), Refusal> {
        let (name, role) = (name.into(), role.into());
        self.did(Op::UserRevokeRole(pb::AuthUserRevokeRoleRequest { name, role }))
    }

    fn allow(&mut self, role: &str, kind: Type, key: &str, end: &str) -> Result<(), Refusal> {
        let perm = Permission {
            perm_type: kind as i32,
            key: key.to_owned().into(),
            range_end: end.to_owned().into(),
        };
        let (name, perm) = (role.into(), Some(perm));
        self.did(Op::RoleGrantPermission(pb::AuthRoleGrantPermissionRequest { name, perm }))
    }

    fn forbid(&mut self, role: &str, key: &str, end: &str) -> Result<(), Refusal> {
        self.did(Op::RoleRevokePermission(pb::AuthRoleRevokePermissionRequest {
            role: role.into(),
            key: key.to_owned().into(),
            range_end: end.to_owned().into(),
        }))
    }

    fn enable(&mut self) -> Result<(), Refusal> {
        self.did(Op::AuthEnable(AuthEnable { token_key: Bytes::from_static(b"key") }))
    }

    /// With root, and `ann` who has the role `r`.
    fn enabled() -> Self {
        let mut auth = Self::new();
        auth.add("root").unwrap();
        auth.grant("root", "root").unwrap();
        auth.add("ann").unwrap();
        auth.role("r").unwrap();
        auth.grant("ann", "r").unwrap();
        auth.enable().unwrap();
        auth
    }

    fn by(&self, user: &str) -> Authority {
        Authority { user: user.into(), auth_revision: self.0.revision, gateway: false }
    }

    fn reads(&self, user: &str, key: &str, end: &str) -> Result<(), Refusal> {
        let authority = self.by(user);
        self.0.rights(Some(&authority)).read(key.as_bytes(), end.as_bytes())
    }

    fn writes(&self, user: &str, key: &str, end: &str) -> Result<(), Refusal> {
        let authority = self.by(user);
        self.0.rights(Some(&authority)).write(key.as_bytes(), end.as_bytes())
    }
}

#[test]
fn authentication_needs_root_with_its_role() {
    let mut auth = Auth::new();
    assert_eq!(auth.enable(), Err(Refusal::RootUserMissing));
    auth.add("root").unwrap();
    assert_eq!(auth.enable(), Err(Refusal::RootRoleMissing));
    // The role itself need not exist.
    auth.grant("root", "root").unwrap();
    auth.enable().unwrap();
    let revision = auth.0.revision;
    auth.enable().unwrap();
    assert_eq!(auth.0.revision, revision, "enabling is no change of users or roles");
    assert_eq!(auth.revoke("root", "root"), Err(Refusal::InvalidAuthManagement));
    let delete = Op::UserDelete(pb::AuthUserDeleteRequest { name: "root".into() });
    assert_eq!(auth.did(delete.clone()), Err(Refusal::InvalidAuthManagement));
    let gone = Op::RoleDelete(pb::AuthRoleDeleteRequest { role: "root".into() });
    assert_eq!(auth.did(gone.clone()), Err(Refusal::InvalidAuthManagement));
    auth.did(Op::AuthDisable(AuthDisable {})).unwrap();
    assert_eq!(auth.0.revision, revision + 1, "disabling is one");
    auth.did(Op::AuthDisable(AuthDisable {})).unwrap();
    assert_eq!(auth.0.revision, revision + 1);
    assert_eq!(auth.did(gone), Err(Refusal::RoleNotFound));
    auth.revoke("root", "root").unwrap();
    auth.did(delete).unwrap();
    assert_eq!(auth.enable(), Err(Refusal::RootUserMissing));
}

#[test]
fn names_and_what_does_not_exist() {
    let mut auth = Auth::new();
    assert_eq!(auth.0.revision, 1);
    assert_eq!(auth.add(""), Err(Refusal::UserEmpty));
    auth.add("ann").unwrap();
    assert_eq!(auth.add("ann"), Err(Refusal::UserExists));
    assert_eq!(auth.role(""), Err(Refusal::RoleEmpty));
    auth.role("r").unwrap();
    assert_eq!(auth.role("r"), Err(Refusal::RoleExists));
    assert_eq!(auth.grant("bob", "r"), Err(Refusal::UserNotFound));
    assert_eq!(auth.grant("ann", "s"), Err(Refusal::RoleNotFound));
    auth.grant("ann", "r").unwrap();
    let revision = auth.0.revision;
    auth.grant("ann", "r").unwrap();
    assert_eq!(auth.0.revision, revision, "granted already");
    assert_eq!(auth.revoke("bob", "r"), Err(Refusal::UserNotFound));
    assert_eq!(auth.revoke("ann", "s"), Err(Refusal::RoleNotGranted));
    assert_eq!(auth.allow("s", Type::Read, "a", ""), Err(Refusal::RoleNotFound));
    assert_eq!(auth.allow("r", Type::Read, "", "\0"), Err(Refusal::InvalidAuthManagement));
    assert_eq!(auth.allow("r", Type::Read, "b", "a"), Err(Refusal::InvalidAuthManagement));
    assert_eq!(auth.allow("r", Type::Read, "b", "b"), Err(Refusal::InvalidAuthManagement));
    let nothing = pb::AuthRoleGrantPermissionRequest { name: "s".into(), perm: None };
    assert_eq!(auth.did(Op::RoleGrantPermission(nothing)), Err(Refusal::PermissionNotGiven));
    assert_eq!(auth.forbid("s", "a", ""), Err(Refusal::RoleNotFound));
    assert_eq!(auth.forbid("r", "a", ""), Err(Refusal::PermissionNotGranted));
    let gone = Op::UserDelete(pb::AuthUserDeleteRequest { name: "bob".into() });
    assert_eq!(auth.did(gone), Err(Refusal::UserNotFound));
    let password_hash = Bytes::new();
    let secret = UserPassword { name: "bob".into(), password_hash };
    assert_eq!(auth.did(Op::UserPassword(secret)), Err(Refusal::UserNotFound));
}

#[test]
fn rights_follow_roles_and_permissions() {
    let mut auth = Auth::enabled();
    assert_eq!(auth.reads("ann", "a", ""), Err(Refusal::PermissionDenied));
    auth.allow("r", Type::Read, "a", "c").unwrap();
    assert_eq!(auth.reads("ann", "a", "c"), Ok(()));
    assert_eq!(auth.reads("ann", "a", "c\0"), Err(Refusal::PermissionDenied));
    assert_eq!(auth.writes("ann", "a", ""), Err(Refusal::PermissionDenied));
    auth.role("s").unwrap();
    auth.allow("s", Type::Readwrite, "c", "\0").unwrap();
    auth.grant("ann", "s").unwrap();
    assert_eq!(auth.reads("ann", "a", "\0"), Ok(()), "the union of both roles");
    assert_eq!(auth.writes("ann", "x", ""), Ok(()));
    assert_eq!(auth.writes("ann", "a", "\0"), Err(Refusal::PermissionDenied));
    // The same range again replaces what was granted for it.
    auth.allow("s", Type::Read, "c", "\0").unwrap();
    assert_eq!(auth.writes("ann", "x", ""), Err(Refusal::PermissionDenied));
    auth.forbid("r", "a", "c").unwrap();
    assert_eq!(auth.reads("ann", "a", ""), Err(Refusal::PermissionDenied));
    auth.did(Op::RoleDelete(pb::AuthRoleDeleteRequest { role: "s".into() })).unwrap();
    assert_eq!(auth.reads("ann", "x", ""), Err(Refusal::PermissionDenied));
    assert_eq!(auth.0.user("ann").unwrap().roles, ["r"]);
    assert_eq!(auth.reads("root", "\0", "\0"), Ok(()));
    assert_eq!(auth.reads("nobody", "a", ""), Err(Refusal::PermissionDenied));
}

#[test]
fn several_ranges_with_one_start() {
    let mut auth = Auth::enabled();
    auth.allow("r", Type::Read, "a", "b").unwrap();
    auth.allow("r", Type::Read, "a", "c").unwrap();
    auth.allow("r", Type::Write, "a", "c").unwrap();
    let ends = auth.0.role("r").unwrap().key_permission.iter().map(|p| p.range_end.clone());
    assert_eq!(ends.collect::<Vec<_>>(), ["b", "c", "c"], "added, not replaced, as etcd does");
    auth.forbid("r", "a", "c").unwrap();
    assert_eq!(auth.0.role("r").unwrap().key_permission.len(), 1);
}

#[test]
fn an_authority_is_judged_by_the_state_it_meets() {
    let mut auth = Auth::enabled();
    let old = auth.by("ann");
    let root = auth.by("root");
    auth.allow("r", Type::Readwrite, "a", "").unwrap();
    let denied = |result: Result<(), Refusal>, refusal| assert_eq!(result, Err(refusal));
    denied(auth.0.rights(Some(&old)).read(b"a", b""), Refusal::AuthOldRevision);
    denied(auth.0.rights(Some(&root)).read(b"a", b""), Refusal::AuthOldRevision);
    denied(auth.0.rights(None).read(b"a", b""), Refusal::UserEmpty);
    let zero = Authority { auth_revision: 0, ..auth.by("root") };
    denied(auth.0.rights(Some(&zero)).read(b"a", b""), Refusal::UserEmpty);
    // Administration does not look at the auth revision, as in etcd.
    assert_eq!(auth.0.admin(Some(&root)), Ok(()));
    denied(auth.0.admin(Some(&old)), Refusal::PermissionDenied);
    denied(auth.0.admin(Some(&auth.by("nobody"))), Refusal::UserNotFound);
    denied(auth.0.admin(Some(&auth.by(""))), Refusal::UserEmpty);
    denied(auth.0.admin(None), Refusal::UserEmpty);
    denied(auth.0.anybody(None), Refusal::UserEmpty);
    assert_eq!(auth.0.anybody(Some(&auth.by(""))), Ok(()));
    denied(auth.0.current(Some(&root)), Refusal::AuthOldRevision);
    assert_eq!(auth.0.current(None), Ok(()));
    assert_eq!(auth.0.rights(Some(&crate::keyspace::auth::GATEWAY)).read(b"a", b""), Ok(()));
    auth.did(Op::AuthDisable(AuthDisable {})).unwrap();
    assert_eq!(auth.0.rights(None).write(b"z", b"\0"), Ok(()));
    assert_eq!(auth.0.admin(None), Ok(()));
}

#[test]
fn tokens_given_before_a_password_or_an_enabling_are_told_apart() {
    let mut auth = Auth::enabled();
    let first = auth.0.user("ann").unwrap().credentials_since;
    let password_hash = Bytes::from_static(b"other");
    let secret = UserPassword { name: "ann".into(), password_hash };
    auth.did(Op::UserPassword(secret)).unwrap();
    let changed = auth.0.user("ann").unwrap().credentials_since;
    assert!(changed > first);
    auth.grant("ann", "root").unwrap();
    assert_eq!(auth.0.user("ann").unwrap().credentials_since, changed);
    auth.did(Op::UserDelete(pb::AuthUserDeleteRequest { name: "ann".into() })).unwrap();
    auth.add("ann").unwrap();
    assert!(auth.0.user("ann").unwrap().credentials_since > changed);
    auth.did(Op::AuthDisable(AuthDisable {})).unwrap();
    let token_key = Bytes::from_static(b"another key");
    auth.did(Op::AuthEnable(AuthEnable { token_key: token_key.clone() })).unwrap();
    assert_eq!(auth.0.token_key, token_key);
    auth.enable().unwrap();
    assert_eq!(auth.0.token_key, token_key, "not while it is on");
}

#[test]
fn a_user_without_a_password_never_gets_one() {
    let mut auth = Auth::new();
    let password_hash = Bytes::from_static(b"hash");
    let user =
        UserAdd { name: "cert".into(), password_hash: password_hash.clone(), no_password: true };
    auth.did(Op::UserAdd(user)).unwrap();
    assert!(auth.0.user("cert").unwrap().password_hash.is_empty());
    auth.did(Op::UserPassword(UserPassword { name: "cert".into(), password_hash })).unwrap();
    assert!(auth.0.user("cert").unwrap().password_hash.is_empty());
}

/// A put into, or the end of, a lease that holds keys of others.
#[test]
fn leases_that_hold_keys_of_others() {
    let mut auth = Auth::enabled();
    auth.allow("r", Type::Write, "a", "b").unwrap();
    auth.allow("r", Type::Read, "x", "y").unwrap();
    let leases = LeaseTable::default();
    for id in [1, 2, 3] {
        let lease = crate::keyspace::leases::Lease {
            id,
            ttl: 60,
            session: 1,
            renewals: 0,
            remaining: 0,
            spared: false,
            marker: String::new(),
        };
        leases.grant(lease, 0);
    }
    leases.move_key(b"a1", 0, 1, 0);
    leases.move_key(b"a1", 0, 2, 0);
    leases.move_key(b"x1", 0, 2, 0);
    let ann = auth.by("ann");
    let put = |lease| pb::PutRequest { key: "a2".into(), lease, ..Default::default() };
    let rights = auth.0.rights(Some(&ann));
    assert_eq!(rights.put(&put(1), &leases), Ok(()));
    assert_eq!(rights.put(&put(3), &leases), Ok(()));
    assert_eq!(rights.put(&put(9), &leases), Ok(()), "unknown: not for rights to say");
    assert_eq!(rights.put(&put(2), &leases), Err(Refusal::PermissionDenied));
    assert_eq!(auth.0.write_lease(Some(&ann), &leases, 1), Ok(()));
    assert_eq!(auth.0.write_lease(Some(&ann), &leases, 2), Err(Refusal::PermissionDenied));
    assert_eq!(auth.0.read_lease(Some(&ann), &leases, 1), Err(Refusal::PermissionDenied));
    assert_eq!(auth.0.read_lease(Some(&ann), &leases, 3), Ok(()));
    assert_eq!(auth.0.write_lease(None, &leases, 3), Ok(()));
    assert_eq!(auth.0.write_lease(None, &leases, 1), Err(Refusal::UserEmpty));
    assert_eq!(auth.0.write_lease(Some(&auth.by("root")), &leases, 2), Ok(()));
}
