//! A keyspace with users: `root`, and `ann`, who may read and write keys below `app/`. Passwords are
//! `rootpw` and `annpw`.

use leaseway_proto::authpb::Permission;
use leaseway_proto::authpb::permission::Type;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::PATIENCE;

/// Makes hashing passwords cheap.
pub const CHEAP: &str = "--bcrypt-cost=4";

pub async fn connect(port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("a URL");
    endpoint.timeout(PATIENCE).connect().await.expect("connects")
}

/// A request with a token.
pub fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("token", token.parse().expect("ASCII"));
    request
}

pub async fn login(channel: &Channel, name: &str, password: &str) -> Result<String, Status> {
    let request = pb::AuthenticateRequest { name: name.into(), password: password.into() };
    Ok(AuthClient::new(channel.clone()).authenticate(request).await?.into_inner().token)
}

/// Makes them, and turns authentication on.
pub async fn enable(channel: &Channel) {
    let mut auth = AuthClient::new(channel.clone());
    for name in ["root", "app"] {
        auth.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.expect("a role");
    }
    let perm = Some(Permission {
        perm_type: Type::Readwrite as i32,
        key: "app/".into(),
        range_end: "app0".into(),
    });
    let grant = pb::AuthRoleGrantPermissionRequest { name: "app".into(), perm };
    auth.role_grant_permission(grant).await.expect("a permission");
    for (user, role) in [("root", "root"), ("ann", "app")] {
        let (name, password) = (user.to_owned(), format!("{user}pw"));
        let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
        auth.user_add(add).await.expect("a user");
        let grant = pb::AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        auth.user_grant_role(grant).await.expect("a role of a user");
    }
    auth.auth_enable(pb::AuthEnableRequest {}).await.expect("authentication");
}
