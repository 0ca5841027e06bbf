//! The Cluster service. Members can't be added or removed by request: a process is one while it runs.

use super::authority::Gate;
use super::error::Error;
use super::identity::Identity;
use crate::auth::Credentials;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::server::etcdserverpb::cluster_server::Cluster;
use parking_lot::RwLock;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// What the member list tells about this member.
#[derive(Clone, Debug)]
pub struct SelfInfo {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Told back only: there are no peers.
    pub peer_urls: Vec<String>,
}

/// A member that lives.
#[derive(Clone, Debug)]
pub struct Living {
    /// As clients see it.
    pub member: pb::Member,
    /// How far it had applied the log at its last beat.
    pub applied: u64,
    /// The version of its program.
    pub version: String,
}

/// Asks for the members that live now.
pub type ListMembers =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Vec<Living>, Error>> + Send>> + Send + Sync>;

/// Who else is a member.
#[derive(Clone)]
pub enum Members {
    /// Nobody.
    Alone,
    /// Whoever is listed.
    Listed(Arc<ListMembers>),
}

/// The Cluster service.
pub struct ClusterService {
    identity: Identity,
    info: RwLock<SelfInfo>,
    others: Members,
    gate: Arc<dyn Gate>,
}

impl ClusterService {
    /// A service of one member, for those whom `gate` lets through.
    pub fn new(identity: Identity, info: SelfInfo, others: Members, gate: Arc<dyn Gate>) -> Self {
        Self { identity, info: RwLock::new(info), others, gate }
    }

    // Cluster answers carry no revision.
    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(self.identity.header(0))
    }

    async fn members(&self) -> Result<Vec<pb::Member>, Error> {
        let info = self.info.read().clone();
        let me = pb::Member {
            id: self.identity.member_id,
            name: info.name,
            peer_ur_ls: info.peer_urls,
            client_ur_ls: info.client_urls,
            is_learner: false,
        };
        let Members::Listed(list) = &self.others else { return Ok(vec![me]) };
        let living = list().await?.into_iter();
        let mut members: Vec<pb::Member> = living.map(|living| living.member).collect();
        members.retain(|member| member.id != me.id);
        members.push(me);
        members.sort_unstable_by_key(|member| member.id);
        Ok(members)
    }

    async fn known(&self, id: u64) -> Result<(), Error> {
        let known = id == self.identity.member_id
            || self.members().await?.iter().any(|member| member.id == id);
        if known { Ok(()) } else { Err(Error::MemberNotFound) }
    }
}

/// Whether etcd takes the list for peer URLs: at least one, each with scheme, host and port, and no path. What
/// host and port are is nobody's concern yet.
fn valid_peer_urls(urls: &[String]) -> bool {
    let valid = |url: &String| {
        let Some((scheme, rest)) = url.trim().split_once(':') else { return false };
        match scheme.to_ascii_lowercase().as_str() {
            "unix" | "unixs" => true,
            "http" | "https" => rest.strip_prefix("//").is_some_and(is_host_and_port),
            _ => false,
        }
    };
    !urls.is_empty() && urls.iter().all(valid)
}

/// What lies behind the slashes of a URL without a path.
fn is_host_and_port(rest: &str) -> bool {
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    let port = match address.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').and_then(|(_, port)| port.strip_prefix(':')),
        None => address.split_once(':').map(|(_, port)| port),
    };
    let digits = port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    digits && !behind.starts_with('/') && !address.contains(char::is_whitespace)
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let credentials = Credentials::of(&request);
        if request.get_ref().linearizable {
            self.gate.anybody_now(&credentials).await?;
        } else {
            self.gate.anybody(&credentials).await?;
        }
        let members = self.members().await?;
        Ok(Response::new(pb::MemberListResponse { header: self.header(), members }))
    }

    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        let credentials = Credentials::of(&request);
        let urls = request.into_inner().peer_ur_ls;
        if !valid_peer_urls(&urls) {
            return Err(Error::MemberBadUrls.into());
        }
        self.gate.admin(&credentials).await?;
        if urls.iter().any(|url| self.info.read().peer_urls.contains(url)) {
            return Err(Error::PeerUrlExists.into());
        }
        Err(Error::MemberNotEnoughStarted.into())
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.gate.admin(&Credentials::of(&request)).await?;
        self.known(request.into_inner().id).await?;
        Err(Error::MemberNotEnoughStarted.into())
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.gate.admin(&Credentials::of(&request)).await?;
        let request = request.into_inner();
        self.known(request.id).await?;
        self.info.write().peer_urls = request.peer_ur_ls;
        let members = self.members().await?;
        Ok(Response::new(pb::MemberUpdateResponse { header: self.header(), members }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        self.gate.admin(&Credentials::of(&request)).await?;
        self.known(request.into_inner().id).await?;
        Err(Error::MemberNotLearner.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_urls() {
        let valid = |urls: &[&str]| {
            valid_peer_urls(&urls.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert!(valid(&["http://127.0.0.1:2380", "https://host:1"]));
        assert!(valid(&["unix://peer", "unix://", " HTTP://host:1 "]));
        assert!(valid(&[
            "http://[::1]:2380",
            "http://host:",
            "http://host:99999",
            "http://u@h:1?a=b"
        ]));
        for bad in [&[][..], &[""], &["127.0.0.1:2380"], &["http://host"], &["http://host:1/path"]]
        {
            assert!(!valid(bad), "{bad:?}");
        }
        for bad in
            ["http://a:1:2", "http://host:x", "http://[::1]", "http:host:1", "http://h:1/", "host"]
        {
            assert!(!valid(&[bad]), "{bad}");
        }
        assert!(!valid(&["http://host:1", "ftp://host:1"]));
    }
}
