//! What the endpoints tell, apart from keys.

use super::{Asked, Ui};
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::config::{ETCD_VERSION, VERSION};
use crate::gateway::audited::{Asked as Noted, Audited};
use crate::gateway::auth::AuthService;
use crate::gateway::cluster::Members;
use crate::gateway::error::Error;
use crate::keyspace::alarms;
use crate::keyspace::auth::{AuthState, Authority};
use crate::watch::{RangeEnd, WatcherInfo};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::server::etcdserverpb::auth_server::Auth;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Leases that are told of at a time: those that end first.
const LEASES: usize = 200;
/// Keys of each.
const KEYS_OF_LEASE: usize = 20;
/// How often they are looked at again because users and roles change meanwhile.
const LOOKS: usize = 8;
/// Watchers that are told of at a time: those furthest behind.
const WATCHERS: usize = 200;
/// How long the list of gateways may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// Identities as etcdctl prints them.
fn hex(id: u64) -> String {
    format!("{id:x}")
}

impl<L: Log, S: Sessions> Ui<L, S> {
    /// Does what is asked, and notes it where there is an audit log.
    pub(super) async fn noted<Q: Noted, F>(
        &self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<Value, Status>
    where
        F: Future<Output = Result<Value, Status>>,
    {
        match &self.parts.auditor {
            None => call(request).await,
            Some(auditor) => {
                let call = |request| {
                    let told = call(request);
                    async move { told.await.map(Response::new) }
                };
                auditor.stream(method, request, call).await.map(Response::into_inner)
            }
        }
    }

    /// Gives a token for a name and a password, which come as in HTTP's basic authentication.
    pub(super) async fn login(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let given = asked.headers.get(http::header::AUTHORIZATION);
        let pair = given.and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
        let pair = pair.and_then(|pair| String::from_utf8(BASE64.decode(pair).ok()?).ok());
        let Some((name, password)) = pair.as_deref().and_then(|pair| pair.split_once(':')) else {
            return Err(Status::invalid_argument("name and password are needed"));
        };
        let message = pb::AuthenticateRequest { name: name.into(), password: password.into() };
        let mut request = asked.request(message);
        // Not a token.
        request.metadata_mut().remove("authorization");
        let service = AuthService::new(self.parts.context.clone());
        let given = match self.parts.auditor.clone() {
            None => service.authenticate(request).await,
            Some(auditor) => Audited::new(service, auditor).authenticate(request).await,
        };
        Ok(json!({ "token": given?.into_inner().token }))
    }

    pub(super) async fn status(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let request = asked.request(pb::StatusRequest {});
        self.noted("/ui/api/status", request, |request| async move {
            let context = &self.parts.context;
            let who = context.anybody(&Credentials::of(&request)).await?;
            let published = context.reader.view().with_auth();
            let shared = context.reader.shared();
            let raised = shared.alarms.list(0).value;
            let raised = raised.iter().map(|alarm| {
                json!({ "member": hex(alarm.member_id), "alarm": alarms::name(alarm.alarm) })
            });
            let watching = self.parts.hub.stats();
            let (metrics, identity) = (&context.metrics, context.identity);
            Ok(json!({
                "version": VERSION,
                "etcd_version": ETCD_VERSION,
                "name": self.parts.name,
                "backend": self.parts.backend,
                "member": hex(identity.member_id),
                "cluster": hex(identity.cluster_id),
                "revision": published.visible.revision,
                "compacted": published.visible.compacted.max(0),
                "position": published.position,
                "pending": context.log.pending(),
                "file_bytes": self.parts.engine.file_bytes(),
                "row_bytes": shared.row_bytes.load(Ordering::Relaxed),
                "quota_bytes": context.quota_bytes,
                "keys": metrics.keyspace.keys.get(),
                "puts": metrics.keyspace.put_total.get(),
                "deletes": metrics.keyspace.delete_total.get(),
                "leases": shared.leases.len(),
                "streams": watching.streams(),
                "watchers": watching.watchers(),
                "slow_watchers": watching.slow_watchers(),
                "lag": watching.lag(),
                "alarms": raised.collect::<Vec<Value>>(),
                "auth": published.auth.enabled,
                "auth_revision": published.auth.revision,
                "user": who.map(|who| who.user),
            }))
        })
        .await
    }

    /// As whoever lists leases and their keys must be: able to read all keys on all leases.
    pub(super) async fn leases(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let request = asked.request(pb::LeaseLeasesRequest {});
        self.noted("/ui/api/leases", request, |request| async move {
            let credentials = Credentials::of(&request);
            // Nothing is copied for somebody who is nobody.
            self.parts.context.anybody(&credentials).await?;
            for _ in 0..LOOKS {
                if let Some(told) = self.look_at_leases(&credentials).await? {
                    return Ok(told);
                }
            }
            Err(Status::unavailable("users and roles keep changing, look again"))
        })
        .await
    }

    /// Nothing if users or roles changed meanwhile: what was seen may be of before the change, and the
    /// permission of after it.
    async fn look_at_leases(&self, credentials: &Credentials) -> Result<Option<Value>, Error> {
        let context = &self.parts.context;
        let leases = context.reader.leases();
        let before = context.reader.view().auth().revision;
        let (mut told, mut seen) = (Vec::new(), Vec::new());
        let all = context.leases.with_remaining().await?;
        let mut position = 0;
        for (remaining, lease) in all.iter().take(LEASES) {
            let keys = leases.keys(lease.id, None, KEYS_OF_LEASE);
            position = position.max(keys.position);
            // It may have ended meanwhile.
            let Some(keys) = keys.value else { continue };
            told.push(json!({
                "id": hex(lease.id.cast_unsigned()),
                "ttl": lease.ttl,
                "remaining_ms": u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
                "key_count": leases.key_count(lease.id),
                "keys": keys.iter().map(|key| BASE64.encode(key)).collect::<Vec<String>>(),
            }));
            seen.extend(keys);
        }
        context.durable(position).await?;
        let judged = AtomicU64::new(before);
        // The very keys that are told, which need not be on their leases any more, and all others.
        let permit = |auth: &AuthState, who: Option<&Authority>| {
            judged.store(auth.revision, Ordering::Relaxed);
            auth.anybody(who)?;
            auth.admin_or(who, |rights| {
                seen.iter().try_for_each(|key| rights.read(key, &[]))?;
                all.iter().try_for_each(|(_, lease)| rights.read_lease(leases, lease.id))
            })
        };
        context.permitted_now(credentials, permit).await?;
        if judged.load(Ordering::Relaxed) != before {
            return Ok(None);
        }
        let estimated = context.leases.shares_sessions();
        Ok(Some(json!({ "total": all.len(), "estimated": estimated, "leases": told })))
    }

    /// Watchers tell of keys that others look at: for root only.
    pub(super) async fn watchers(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let request = asked.request(pb::StatusRequest {});
        self.noted("/ui/api/watchers", request, |request| async move {
            self.parts.context.admin(&Credentials::of(&request)).await?;
            let listed = self.parts.hub.watchers(WATCHERS).await.map_err(|_| Error::Stopped)?;
            Ok(json!({
                "total": listed.total,
                "revision": listed.revision,
                "watchers": listed.watchers.iter().map(watcher).collect::<Vec<Value>>(),
            }))
        })
        .await
    }

    pub(super) async fn members(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let request = asked.request(pb::MemberListRequest::default());
        self.noted("/ui/api/members", request, |request| async move {
            let context = &self.parts.context;
            context.anybody(&Credentials::of(&request)).await?;
            let me = context.identity.member_id;
            let position = context.reader.view().now().position;
            let mut members = vec![json!({
                "id": hex(me),
                "name": self.parts.name,
                "client_urls": self.parts.client_urls,
                "version": VERSION,
                "position": position,
                "me": true,
            })];
            if let Members::Listed(list) = &self.parts.members {
                let listed = tokio::time::timeout(LIST_TIMEOUT, list()).await;
                let mut others = listed.map_err(|_| Error::TimedOut)??;
                others.retain(|living| living.member.id != me);
                others.sort_unstable_by_key(|living| living.member.id);
                members.extend(others.into_iter().map(|living| {
                    json!({
                        "id": hex(living.member.id),
                        "name": living.member.name,
                        "client_urls": living.member.client_ur_ls,
                        "version": living.version,
                        "position": living.applied,
                        "me": false,
                    })
                }));
            }
            Ok(json!({ "members": members, "position": position }))
        })
        .await
    }
}

fn watcher(info: &WatcherInfo) -> Value {
    let range = info.range.as_ref().map(|range| {
        let end = match &range.end {
            RangeEnd::Single => Value::Null,
            RangeEnd::Before(end) => BASE64.encode(end).into(),
            // As in requests: to the last key.
            RangeEnd::Open => BASE64.encode([0]).into(),
        };
        json!({ "key": BASE64.encode(&range.start), "end": end })
    });
    json!({
        "stream": info.stream,
        "id": info.id,
        "range": range,
        "start": info.start,
        "lag": info.lag,
        "state": info.state,
        "waiting": info.waiting,
    })
}
