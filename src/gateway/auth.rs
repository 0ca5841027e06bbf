//! The Auth service of a server on which authentication is off.
//!
//! Its state can be asked for; users, roles and permissions are not offered by this version, and
//! saying so is all that their calls do.

use super::Context;
use super::error::Error;
use crate::backend::{Log, Sessions};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::server::etcdserverpb::auth_server::Auth;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Auth store revision of a store that never had a user.
const FIRST_REVISION: u64 = 1;

/// The Auth service.
pub struct AuthService<L, S> {
    context: Arc<Context<L, S>>,
}

impl<L, S> AuthService<L, S> {
    /// A service in `context`.
    pub fn new(context: Arc<Context<L, S>>) -> Self {
        Self { context }
    }
}

macro_rules! not_offered {
    ($($method:ident: $request:ident -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl<L: Log, S: Sessions> Auth for AuthService<L, S> {
            async fn auth_status(
                &self,
                _: Request<pb::AuthStatusRequest>,
            ) -> Result<Response<pb::AuthStatusResponse>, Status> {
                Ok(Response::new(pb::AuthStatusResponse {
                    header: Some(self.context.identity.header(self.context.revision())),
                    enabled: false,
                    auth_revision: FIRST_REVISION,
                }))
            }

            async fn authenticate(
                &self,
                _: Request<pb::AuthenticateRequest>,
            ) -> Result<Response<pb::AuthenticateResponse>, Status> {
                Err(Error::AuthNotEnabled.into())
            }

            $(async fn $method(
                &self,
                _: Request<pb::$request>,
            ) -> Result<Response<pb::$response>, Status> {
                Err(Status::unimplemented("users and roles are not offered by this version"))
            })*
        }
    };
}

not_offered! {
    auth_enable: AuthEnableRequest -> AuthEnableResponse;
    auth_disable: AuthDisableRequest -> AuthDisableResponse;
    user_add: AuthUserAddRequest -> AuthUserAddResponse;
    user_get: AuthUserGetRequest -> AuthUserGetResponse;
    user_list: AuthUserListRequest -> AuthUserListResponse;
    user_delete: AuthUserDeleteRequest -> AuthUserDeleteResponse;
    user_change_password: AuthUserChangePasswordRequest -> AuthUserChangePasswordResponse;
    user_grant_role: AuthUserGrantRoleRequest -> AuthUserGrantRoleResponse;
    user_revoke_role: AuthUserRevokeRoleRequest -> AuthUserRevokeRoleResponse;
    role_add: AuthRoleAddRequest -> AuthRoleAddResponse;
    role_get: AuthRoleGetRequest -> AuthRoleGetResponse;
    role_list: AuthRoleListRequest -> AuthRoleListResponse;
    role_delete: AuthRoleDeleteRequest -> AuthRoleDeleteResponse;
    role_grant_permission: AuthRoleGrantPermissionRequest -> AuthRoleGrantPermissionResponse;
    role_revoke_permission: AuthRoleRevokePermissionRequest -> AuthRoleRevokePermissionResponse;
}
