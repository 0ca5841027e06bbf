//! The Auth service: passwords are hashed and tokens given here, everything else is a command or a
//! read of the keyspace's users and roles.

use super::Context;
use super::error::Error;
use super::told::{self, Asker, AuthChange};
use crate::auth::Credentials;
use crate::auth::passwords::{PASSWORD_BYTES_MAX, Password, PasswordError};
use crate::auth::tokens::TokenError;
use crate::auth::tokens::simple::KEY_BYTES;
use crate::backend::{Log, Sessions};
use crate::keyspace::auth::{AuthState, Authority, ROOT};
use crate::keyspace::command::{Op, internal};
use crate::keyspace::error::Refusal;
use crate::keyspace::view::Published;
use crate::telemetry::lines::Lines;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use leaseway_proto::authpb::Permission;
use leaseway_proto::authpb::permission::Type;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::log::{AuthDisable, AuthEnable, UserAdd, UserPassword};
use leaseway_proto::server::etcdserverpb::auth_server::Auth;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// How often a password is checked again because the user changes meanwhile.
const ATTEMPTS: usize = 8;

/// The Auth service.
pub struct AuthService<L, S> {
    context: Arc<Context<L, S>>,
    failed: Lines,
}

impl<L, S> AuthService<L, S> {
    /// A service in `context`.
    pub fn new(context: Arc<Context<L, S>>) -> Self {
        Self { context, failed: Lines::default() }
    }
}

impl From<PasswordError> for Error {
    fn from(error: PasswordError) -> Self {
        match error {
            PasswordError::TooLong => Self::PasswordTooLong,
            PasswordError::Busy => Self::TooManyRequests,
            PasswordError::Failed => Self::Stopped,
        }
    }
}

impl From<TokenError> for Error {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Off => Self::AuthFailed,
            TokenError::VerifyOnly => Self::TokenVerifyOnly,
            TokenError::NoKey => Self::Stopped,
        }
    }
}

fn random_key() -> Bytes {
    rand::random::<[u8; KEY_BYTES]>().to_vec().into()
}

impl<L: Log, S: Sessions> AuthService<L, S> {
    fn header(&self, revision: i64) -> Option<pb::ResponseHeader> {
        Some(self.context.identity.header(revision))
    }

    /// Orders a change of users or roles, and says so in the log; returns the header for its answer.
    async fn change(
        &self,
        op: Op,
        credentials: &Credentials,
        asker: &Asker,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let change = AuthChange::of(&op);
        let outcome = self.context.propose(op, credentials).await?;
        outcome.reply.map_err(Error::from)?;
        if let Some(change) = change.filter(|_| outcome.changed) {
            change.tell(asker);
        }
        Ok(self.header(outcome.revision))
    }

    /// Who sends a request: as what is checked, and as the log has it.
    fn asked<T>(&self, request: &Request<T>) -> (Credentials, Asker) {
        (Credentials::of(request), Asker::of(&self.context, request))
    }

    /// Does as a request asks that is the command.
    async fn change_as_asked<T>(
        &self,
        request: Request<T>,
        op: impl FnOnce(T) -> Op,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let (credentials, asker) = self.asked(&request);
        self.change(op(request.into_inner()), &credentials, &asker).await
    }

    /// The state of a linearizable read, and who reads.
    async fn read<T>(
        &self,
        request: &Request<T>,
    ) -> Result<(Published, Option<Authority>), Status> {
        let credentials = Credentials::of(request);
        let authority = self.context.permitted_now(&credentials, |_, _| Ok(())).await?;
        Ok((self.context.reader.view().with_auth(), authority))
    }

    /// A token for the user whose password this is. Of the name of somebody who does not exist only its beginning
    /// is kept while that takes.
    async fn authenticate(&self, name: &mut String, password: Password) -> Result<String, Error> {
        for _ in 0..ATTEMPTS {
            let checked = self.context.reader.view().auth();
            if !checked.enabled {
                return Err(Error::AuthNotEnabled);
            }
            let user = checked.user(name);
            if user.is_some_and(|user| user.no_password) {
                return Err(Error::NoPasswordUser);
            }
            let hash = user.map(|user| user.password_hash.to_vec());
            if hash.is_none() {
                told::shorten(name);
            }
            let passwords = &self.context.auth.passwords;
            let others = checked.users().filter(|(_, user)| !user.no_password);
            let stand_in = passwords.stand_in(others.map(|(_, user)| &user.password_hash[..]));
            if !passwords.verify(password.clone(), hash, stand_in).await? {
                return Err(Error::AuthFailed);
            }
            // What was checked may be over by now: then it is checked again.
            let now = self.context.reader.view().auth();
            let same = |state: &AuthState| state.user(name).map(|user| user.credentials_since);
            if now.enabled && same(&now) == same(&checked) {
                return self.give_token(name, now).await;
            }
        }
        Err(Error::AuthOldRevision)
    }

    async fn give_token(&self, name: &str, state: Arc<AuthState>) -> Result<String, Error> {
        let tokens = &self.context.auth.tokens;
        match tokens.give(name, &state) {
            Err(TokenError::NoKey) => {
                // Users may have come from elsewhere, with authentication on and without a key.
                let enable = Op::AuthEnable(AuthEnable { token_key: random_key() });
                self.context.log.propose(internal(enable)).await?.reply?;
                Ok(tokens.give(name, &self.context.reader.view().auth())?)
            }
            result => Ok(result?),
        }
    }
}

/// What `hashed_password` holds, unless it is no base64.
fn given_hash(text: &str) -> Option<Bytes> {
    // Line breaks are allowed in it.
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    BASE64.decode(text).ok().map(Bytes::from)
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Auth for AuthService<L, S> {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let op = Op::AuthEnable(AuthEnable { token_key: random_key() });
        let header = self.change_as_asked(request, |_| op).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let header = self.change_as_asked(request, |_| Op::AuthDisable(AuthDisable {})).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let (published, _) = self.read(&request).await?;
        Ok(Response::new(pb::AuthStatusResponse {
            header: self.header(published.visible.revision),
            enabled: published.auth.enabled,
            auth_revision: published.auth.revision,
        }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let client = told::address(&request);
        let pb::AuthenticateRequest { mut name, password } = request.into_inner();
        let password = Password::from(password);
        self.context.log.barrier().await.map_err(Error::from)?;
        let given = AuthService::authenticate(self, &mut name, password).await;
        if let Err(error) = given
            && error != Error::AuthNotEnabled
        {
            self.failed.event(
                || told::failed_login(&mut name, client.as_ref(), error.told().1),
                told::failed_logins,
            );
        }
        match given {
            Ok(_) => self.context.metrics.auth.succeeded_total.inc(),
            Err(Error::AuthNotEnabled) => {}
            Err(_) => self.context.metrics.auth.failed_total.inc(),
        }
        let token = given?;
        let header = self.header(self.context.revision());
        Ok(Response::new(pb::AuthenticateResponse { header, token }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let (credentials, asker) = self.asked(&request);
        let pb::AuthUserAddRequest { name, password, options, .. } = request.into_inner();
        let no_password = options.is_some_and(|options| options.no_password);
        let mut password_hash = Bytes::new();
        if !no_password {
            if password.len() > PASSWORD_BYTES_MAX {
                return Err(Error::PasswordTooLong.into());
            }
            // Hashing is work: not for everybody who asks.
            self.context.admin(&credentials).await?;
            let hash = self.context.auth.passwords.hash(password).await.map_err(Error::from)?;
            password_hash = hash.into();
        }
        let op = Op::UserAdd(UserAdd { name, password_hash, no_password });
        let header = self.change(op, &credentials, &asker).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        let (credentials, asker) = self.asked(&request);
        let pb::AuthUserChangePasswordRequest { name, password, hashed_password } =
            request.into_inner();
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Error::PasswordTooLong.into());
        }
        self.context.admin(&credentials).await?;
        let password_hash = if password.is_empty() {
            let given = given_hash(&hashed_password);
            let state = self.context.reader.view().auth();
            // Whoever has no password gets none, and needs no good hash either.
            if given.is_none() && state.user(&name).is_some_and(|user| !user.no_password) {
                return Err(Error::NoPasswordUser.into());
            }
            given.unwrap_or_default()
        } else {
            self.context.auth.passwords.hash(password).await.map_err(Error::from)?.into()
        };
        let op = Op::UserPassword(UserPassword { name, password_hash });
        let header = self.change(op, &credentials, &asker).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let header = self.change_as_asked(request, Op::UserDelete).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let header = self.change_as_asked(request, Op::UserGrantRole).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let header = self.change_as_asked(request, Op::UserRevokeRole).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let header = self.change_as_asked(request, Op::RoleAdd).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let header = self.change_as_asked(request, Op::RoleDelete).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let header = self.change_as_asked(request, Op::RoleGrantPermission).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let header = self.change_as_asked(request, Op::RoleRevokePermission).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let (Published { visible, auth, .. }, authority) = self.read(&request).await?;
        let name = request.into_inner().name;
        // Everybody may look at themselves.
        let own = name == authority.as_ref().map_or("", |who| &who.user);
        if let Err(refusal) = auth.admin(authority.as_ref())
            && !own
        {
            return Err(Error::from(refusal).into());
        }
        let user = auth.user(&name).ok_or(Error::UserNotFound)?;
        let (header, roles) = (self.header(visible.revision), user.roles.clone());
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        let (Published { visible, auth, .. }, authority) = self.read(&request).await?;
        auth.admin(authority.as_ref()).map_err(Error::from)?;
        let users = auth.users().map(|(name, _)| name.to_owned()).collect();
        let header = self.header(visible.revision);
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let (Published { visible, auth, .. }, authority) = self.read(&request).await?;
        let name = request.into_inner().role;
        // Everybody may look at the roles that they have.
        let user = authority.as_ref().and_then(|who| auth.user(&who.user));
        if let Err(refusal) = auth.admin(authority.as_ref())
            && !user.is_some_and(|user| user.has_role(&name))
        {
            return Err(Error::from(refusal).into());
        }
        let role = auth.role(&name).ok_or(Error::from(Refusal::RoleNotFound))?;
        let perm = if name == ROOT {
            let range_end = Bytes::from_static(b"\0");
            let perm_type = Type::Readwrite as i32;
            vec![Permission { perm_type, key: Bytes::new(), range_end }]
        } else {
            role.key_permission.clone()
        };
        let header = self.header(visible.revision);
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        let (Published { visible, auth, .. }, authority) = self.read(&request).await?;
        auth.admin(authority.as_ref()).map_err(Error::from)?;
        let roles = auth.roles().map(|(name, _)| name.to_owned()).collect();
        let header = self.header(visible.revision);
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }
}
