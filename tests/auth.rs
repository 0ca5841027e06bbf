//! Authentication of the real binary where it meets concurrency and several gateways: who may what is
//! decided by the state that a request meets, whichever gateway it came through.

mod support;

use std::time::Instant;

use leaseway_proto::authpb::Permission;
use leaseway_proto::authpb::permission::Type;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use leaseway_proto::etcdserverpb::kv_client::KvClient;
use leaseway_proto::etcdserverpb::watch_client::WatchClient;
use support::client::within;
use support::oxia::Oxia;
use support::{PATIENCE, Server};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const CHEAP: &str = "--bcrypt-cost=4";

/// A connection to one server, and a token.
#[derive(Clone)]
struct Session {
    auth: AuthClient<Channel>,
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
    token: Option<String>,
}

impl Session {
    async fn open(server: &Server) -> Session {
        let url = format!("http://127.0.0.1:{}", server.port);
        let endpoint = Endpoint::from_shared(url).expect("a URL").timeout(PATIENCE);
        let channel = endpoint.connect().await.expect("connects");
        let (auth, kv) = (AuthClient::new(channel.clone()), KvClient::new(channel.clone()));
        Session { auth, kv, watch: WatchClient::new(channel), token: None }
    }

    fn with(&self, token: &Option<String>) -> Session {
        Session { token: token.clone(), ..self.clone() }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.parse().expect("a token is ASCII"));
        }
        request
    }

    async fn login(&self, name: &str, password: &str) -> Result<Session, Status> {
        let request = pb::AuthenticateRequest { name: name.into(), password: password.into() };
        let token = self.auth.clone().authenticate(request).await?.into_inner().token;
        Ok(self.with(&Some(token)))
    }

    async fn put(&self, key: &str) -> Result<(), Status> {
        let put = pb::PutRequest { key: key.to_owned().into(), ..Default::default() };
        self.kv.clone().put(self.request(put)).await.map(drop)
    }

    async fn get(&self, key: &str, serializable: bool) -> Result<(), Status> {
        let key = key.to_owned().into();
        let range = pb::RangeRequest { key, serializable, ..Default::default() };
        self.kv.clone().range(self.request(range)).await.map(drop)
    }

    /// Why a watch of a key from a revision on is refused, if it is.
    async fn watch(&self, key: &str, start_revision: i64) -> Option<String> {
        let key = key.to_owned().into();
        let create = pb::WatchCreateRequest { key, start_revision, ..Default::default() };
        let create = pb::watch_request::RequestUnion::CreateRequest(create);
        let create = pb::WatchRequest { request_union: Some(create) };
        let requests = tokio_stream::once(create);
        let answers = self.watch.clone().watch(self.request(requests)).await.expect("a stream");
        let answer = within(answers.into_inner().message()).await.expect("an answer");
        let answer = answer.expect("no end");
        assert!(answer.created);
        answer.canceled.then_some(answer.cancel_reason)
    }

    async fn add_user(&self, name: &str) {
        let request = pb::AuthUserAddRequest {
            name: name.into(),
            password: format!("{name}pw"),
            ..Default::default()
        };
        self.auth.clone().user_add(self.request(request)).await.expect("a user");
    }

    async fn add_role(&self, name: &str) {
        let request = pb::AuthRoleAddRequest { name: name.into() };
        self.auth.clone().role_add(self.request(request)).await.expect("a role");
    }

    async fn grant(&self, user: &str, role: &str) {
        let request = pb::AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        self.auth.clone().user_grant_role(self.request(request)).await.expect("granted");
    }

    async fn revoke(&self, user: &str, role: &str) {
        let request = pb::AuthUserRevokeRoleRequest { name: user.into(), role: role.into() };
        self.auth.clone().user_revoke_role(self.request(request)).await.expect("revoked");
    }

    async fn allow(&self, role: &str, key: &str) {
        let key = key.to_owned().into();
        let perm_type = Type::Readwrite as i32;
        let perm = Some(Permission { perm_type, key, ..Default::default() });
        let request = pb::AuthRoleGrantPermissionRequest { name: role.into(), perm };
        self.auth.clone().role_grant_permission(self.request(request)).await.expect("allowed");
    }

    async fn passwd(&self, name: &str, password: &str) {
        let request = pb::AuthUserChangePasswordRequest {
            name: name.into(),
            password: password.into(),
            ..Default::default()
        };
        self.auth.clone().user_change_password(self.request(request)).await.expect("changed");
    }

    async fn enable(&self) {
        self.auth.clone().auth_enable(self.request(pb::AuthEnableRequest {})).await.expect("on");
    }

    async fn disable(&self) {
        self.auth.clone().auth_disable(self.request(pb::AuthDisableRequest {})).await.expect("off");
    }

    /// root, and ann with the role `r`, who may do everything with the key `k`; then turned on.
    async fn set_up(&self) {
        for name in ["root", "ann"] {
            self.add_user(name).await;
        }
        for role in ["r", "s"] {
            self.add_role(role).await;
        }
        self.grant("root", "root").await;
        self.grant("ann", "r").await;
        self.allow("r", "k").await;
        self.enable().await;
    }
}

fn is(result: Result<(), Status>, code: Code, text: &str) {
    let status = result.expect_err(text);
    assert_eq!((status.code(), status.message()), (code, text));
}

fn denied(result: Result<(), Status>) {
    is(result, Code::PermissionDenied, "etcdserver: permission denied");
}

fn nobody(result: Result<(), Status>) {
    is(result, Code::InvalidArgument, "etcdserver: user name is empty");
}

fn not_any_more(result: Result<(), Status>) {
    is(result, Code::Unauthenticated, "etcdserver: invalid auth token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_concerned_does_not_notice_changes() {
    let server = Server::start(&[CHEAP]);
    let session = Session::open(&server).await;
    session.set_up().await;
    let root = session.login("root", "rootpw").await.expect("a token");
    let ann = session.login("ann", "annpw").await.expect("a token");
    let changing = tokio::spawn(async move {
        for _ in 0..150 {
            root.grant("ann", "s").await;
            root.revoke("ann", "s").await;
        }
    });
    // With a token of etcd's kind each of these meets a newer state of users and roles every so often.
    let (mut puts, started) = (0, Instant::now());
    while !changing.is_finished() {
        let (put, strong, weak) =
            tokio::join!(ann.put("k"), ann.get("k", false), ann.get("k", true));
        put.expect("a put");
        strong.expect("a linearizable read");
        weak.expect("a serializable read");
        puts += 1;
        assert!(started.elapsed() < PATIENCE, "the changes end");
    }
    changing.await.expect("the changes");
    assert!(puts > 10, "only {puts} requests went beside the changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_revoked_is_over_when_that_is_answered() {
    let server = Server::start(&[CHEAP]);
    let session = Session::open(&server).await;
    session.set_up().await;
    let root = session.login("root", "rootpw").await.expect("a token");
    let ann = Session::open(&server).await.login("ann", "annpw").await.expect("a token");
    for _ in 0..40 {
        root.revoke("ann", "r").await;
        let (put, get, weak) = tokio::join!(ann.put("k"), ann.get("k", false), ann.get("k", true));
        denied(put);
        denied(get);
        denied(weak);
        root.grant("ann", "r").await;
        let (put, get, weak) = tokio::join!(ann.put("k"), ann.get("k", false), ann.get("k", true));
        put.expect("a put");
        get.expect("a read");
        weak.expect("a read");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_nowhere_on_disk_or_in_the_log() {
    let server = Server::start(&[CHEAP, "--log-level=debug"]);
    let session = Session::open(&server).await;
    session.set_up().await;
    let root = session.login("root", "rootpw").await.expect("a token");
    root.passwd("ann", "a-rare-password").await;
    session.login("ann", "a-rare-password").await.expect("a token");
    session.login("ann", "a-wrong-password").await.map(drop).expect_err("refused");
    let mut files = vec![server.dir.path().to_owned()];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a directory");
            files.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let content = std::fs::read(&path).expect("a file");
        for secret in ["rootpw", "annpw", "a-rare-password", "a-wrong-password"] {
            let found = content.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{secret} is in {}", path.display());
        }
        seen += 1;
    }
    assert!(seen >= 3, "store, log and output were looked through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_agree_on_users_and_tokens() {
    let Some(oxia) = Oxia::start() else { return };
    let backend = format!("--backend=oxia://{}/default?keyspace=auth", oxia.address());
    let start = || Server::start(&[&backend, CHEAP]);
    let (one, two) = (start(), start());
    let (first, second) = (Session::open(&one).await, Session::open(&two).await);
    first.set_up().await;
    // Nobody is told less at the other gateway than here.
    let reason = second.watch("k", 1).await.expect("refused");
    assert!(reason.ends_with("etcdserver: user name is empty"), "{reason}");
    nobody(second.put("k").await);
    nobody(second.get("k", false).await);
    let root = within(first.login("root", "rootpw")).await.expect("a token");
    for round in 0..10 {
        let ann = first.login("ann", "annpw").await.expect("a token");
        let there = second.with(&ann.token);
        there.put("k").await.expect("the other gateway's token");
        there.get("k", false).await.expect("the other gateway's token");
        root.revoke("ann", "r").await;
        // A watch stays, so it is the first to ask.
        for start in [0, 1] {
            let reason = there.watch("k", start).await.expect("refused");
            assert!(reason.ends_with("etcdserver: permission denied"), "{reason}");
            root.grant("ann", "r").await;
            assert_eq!(there.watch("k", start).await, None);
            root.revoke("ann", "r").await;
        }
        denied(there.put("k").await);
        denied(there.get("k", false).await);
        root.grant("ann", "r").await;
        there.put("k").await.expect("granted again");
        // A password is changed here, and its token over there.
        let password = format!("annpw{round}");
        root.passwd("ann", &password).await;
        not_any_more(there.get("k", false).await);
        not_any_more(there.put("k").await);
        let again = second.login("ann", &password).await.expect("the new password");
        first.with(&again.token).put("k").await.expect("the token of the second gateway");
        root.passwd("ann", "annpw").await;
    }
    // A gateway that comes later knows everybody, and the tokens.
    let three = start();
    let third = Session::open(&three).await;
    let ann = first.login("ann", "annpw").await.expect("a token");
    third.with(&ann.token).put("k").await.expect("a token of before");
    denied(third.with(&ann.token).put("l").await);
    root.disable().await;
    second.put("l").await.expect("anybody");
    third.get("l", false).await.expect("anybody");
    second.enable().await;
    not_any_more(third.with(&ann.token).get("k", false).await);
    nobody(third.put("k").await);
}
