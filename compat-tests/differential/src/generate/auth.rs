//! Users, roles and permissions: a sequence sets some up, turns authentication on, and then everybody
//! does everything.

use leaseway_proto::authpb::{Permission, UserAddOptions};
use leaseway_proto::etcdserverpb as pb;

use prost_reflect::{DynamicMessage, Value};

use super::Generator;
use crate::login::Who;
use crate::ops::Op;

const USERS: [&str; 4] = ["ann", "bob", "cert", "root"];
const ROLES: [&str; 3] = ["r", "s", "root"];

fn password_of(name: &str) -> String {
    format!("{name}pw")
}

/// Whether a range in a request, however deep, ends before it begins.
fn holds_backward_range(message: &DynamicMessage) -> bool {
    let bytes = |name: &str| {
        let value = message.get_field_by_name(name)?;
        value.as_bytes().cloned()
    };
    let backward = match (bytes("key"), bytes("range_end")) {
        (Some(key), Some(end)) => !end.is_empty() && end[..] != [0] && end <= key,
        _ => false,
    };
    backward || message.fields().any(|(_, value)| within(value))
}

fn within(value: &Value) -> bool {
    match value {
        Value::Message(message) => holds_backward_range(message),
        Value::List(items) => items.iter().any(within),
        _ => false,
    }
}

impl Generator {
    /// A whole sequence, which needs servers of its own.
    pub(super) fn auth(&mut self, length: usize) {
        self.auth_setup();
        for _ in 0..length + 20 {
            match self.rng.below(100) {
                0..25 => self.becoming(),
                25..50 => self.auth_change(),
                50..72 => self.kv(),
                72..84 => self.lease_or_write(),
                84..92 => self.watch_or_write(),
                92..96 => self.maintenance_or_write(),
                _ => self.cluster(),
            }
        }
        // What everything has come to is for root to see.
        self.login("root");
        // Whether these are permitted depends, in etcd, on the shape of a tree: `auth-empty-range`.
        self.ops.retain(|op| {
            let backward = op.request().is_some_and(holds_backward_range);
            !backward || op.kind().starts_with("Auth.")
        });
    }

    fn auth_setup(&mut self) {
        for name in USERS {
            self.user_add(name, name == "cert");
        }
        for role in ["r", "s"] {
            self.push("Auth.RoleAdd", &pb::AuthRoleAddRequest { name: role.into() });
        }
        for (user, role) in [("root", "root"), ("ann", "r"), ("bob", "s")] {
            let request = pb::AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
            self.push("Auth.UserGrantRole", &request);
        }
        for _ in 0..self.rng.below(6) {
            self.permission_grant();
        }
        if self.rng.chance(90) {
            self.push("Auth.AuthEnable", &pb::AuthEnableRequest {});
            self.login("root");
        }
    }

    fn user_add(&mut self, name: &str, no_password: bool) {
        let request = pb::AuthUserAddRequest {
            name: name.into(),
            password: password_of(name),
            options: no_password.then_some(UserAddOptions { no_password }),
            hashed_password: String::new(),
        };
        self.push("Auth.UserAdd", &request);
    }

    fn login(&mut self, name: &str) {
        let who = Who::User { name: name.into(), password: password_of(name) };
        self.ops.push(Op::As { who });
    }

    fn becoming(&mut self) {
        let wrong = |name: &str| Who::User { name: name.into(), password: "wrong".into() };
        let who = match self.rng.below(20) {
            0 => Who::Nobody,
            1 => Who::Token(self.rng.pick(&["x", "x.1", "a.b.c", "."]).into()),
            2 => wrong("ann"),
            3 => wrong("nobody-at-all"),
            4 => wrong("cert"),
            5..12 => return self.login("root"),
            12..18 => return self.login("ann"),
            _ => return self.login("bob"),
        };
        self.ops.push(Op::As { who });
    }

    fn user(&mut self) -> String {
        self.rng.pick(&["ann", "ann", "bob", "bob", "cert", "root", "new", ""]).into()
    }

    fn role(&mut self) -> String {
        self.rng.pick(&["r", "r", "s", "s", "root", "new", ""]).into()
    }

    fn permission_grant(&mut self) {
        let perm = self.rng.chance(95).then(|| Permission {
            perm_type: self.rng.pick(&[0, 0, 1, 2, 2, 2, 7]),
            key: self.key(),
            range_end: self.range_end(),
        });
        let name = self.rng.pick(&ROLES).to_owned();
        self.push("Auth.RoleGrantPermission", &pb::AuthRoleGrantPermissionRequest { name, perm });
    }

    fn auth_change(&mut self) {
        match self.rng.below(40) {
            0..14 => self.permission_grant(),
            14..16 => {
                let role = self.role();
                let (key, range_end) = (self.key(), self.range_end());
                let request = pb::AuthRoleRevokePermissionRequest { role, key, range_end };
                self.push("Auth.RoleRevokePermission", &request);
            }
            16..18 => {
                let (name, no_password) = (self.user(), self.rng.chance(20));
                self.user_add(&name, no_password);
            }
            18 => {
                let name = self.user();
                self.push("Auth.UserDelete", &pb::AuthUserDeleteRequest { name });
            }
            19..21 => {
                let name = self.user();
                let hashed_password = self.rng.pick(&["", "no base64", "eA=="]).to_owned();
                let password = if self.rng.chance(70) { password_of(&name) } else { String::new() };
                let request = pb::AuthUserChangePasswordRequest { name, password, hashed_password };
                self.push("Auth.UserChangePassword", &request);
            }
            21..24 => {
                let (user, role) = (self.user(), self.role());
                self.push("Auth.UserGrantRole", &pb::AuthUserGrantRoleRequest { user, role });
            }
            24..26 => {
                let (name, role) = (self.user(), self.role());
                self.push("Auth.UserRevokeRole", &pb::AuthUserRevokeRoleRequest { name, role });
            }
            26 => {
                let name = self.role();
                self.push("Auth.RoleAdd", &pb::AuthRoleAddRequest { name });
            }
            27 => {
                let role = self.role();
                self.push("Auth.RoleDelete", &pb::AuthRoleDeleteRequest { role });
            }
            28..30 => {
                let name = self.user();
                self.push("Auth.UserGet", &pb::AuthUserGetRequest { name });
            }
            30..32 => {
                let role = self.role();
                self.push("Auth.RoleGet", &pb::AuthRoleGetRequest { role });
            }
            32..34 => self.push("Auth.UserList", &pb::AuthUserListRequest {}),
            34..36 => self.push("Auth.RoleList", &pb::AuthRoleListRequest {}),
            36 => self.push("Auth.AuthEnable", &pb::AuthEnableRequest {}),
            37 => self.push("Auth.AuthDisable", &pb::AuthDisableRequest {}),
            _ => self.push("Auth.AuthStatus", &pb::AuthStatusRequest {}),
        }
    }
}
