use super::*;
use crate::gateway::authority::{self as gate, Open};
use crate::keyspace::event::History;
use crate::watch::Settings;
use crate::watch::fake::{Change, FakeHistory};
use leaseway_proto::etcdserverpb::watch_client::WatchClient;
use leaseway_proto::etcdserverpb::{WatchCancelRequest, WatchProgressRequest, WatchResponse};
use leaseway_proto::server::etcdserverpb::watch_server::WatchServer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

const DEADLINE: Duration = Duration::from_secs(30);
const IDENTITY: Identity = Identity { cluster_id: 11, member_id: 12, raft_term: 13 };

fn whole(sizes: &[usize]) -> WatchReply {
    WatchReply {
        header: Some(IDENTITY.header(9)),
        watch_id: 4,
        events: sizes.iter().map(|size| Bytes::from(vec![7; *size])).collect(),
        ..WatchReply::default()
    }
}

fn cut(sizes: &[usize], limit: usize) -> Vec<(Vec<usize>, bool)> {
    Fragments::new(whole(sizes), limit)
        .map(|reply| (reply.events.iter().map(Bytes::len).collect(), reply.fragment))
        .collect()
}

#[test]
fn fragments_stay_below_the_limit_and_only_the_last_is_final() {
    let base = WatchReply { fragment: true, ..whole(&[]) }.encoded_len();
    assert_eq!(
        cut(&[10, 10, 10, 10, 10], base + 21),
        [(vec![10, 10], true), (vec![10, 10], true), (vec![10], false)]
    );
    // Reaching the limit is too much.
    assert_eq!(cut(&[10, 10], base + 20), [(vec![10], true), (vec![10], false)]);
    // A single event is never cut.
    assert_eq!(
        cut(&[100, 1, 100], base + 20),
        [(vec![100], true), (vec![1], true), (vec![100], false)]
    );
}

#[test]
fn the_interval_is_bounded_and_jittered() {
    for (configured, expected) in [(0, 600_000), (1, 100), (5_000, 5_000)] {
        let options = WatchOptions {
            progress_interval: Duration::from_millis(configured),
            max_request_bytes: 0,
        };
        let expected = Duration::from_millis(expected);
        let interval = options.jittered_interval();
        assert!(interval >= expected && interval < expected + expected / 10);
    }
}

/// A server with nothing but the Watch service, and its store.
struct Fixture {
    history: Arc<FakeHistory>,
    hub: Hub,
    endpoint: Endpoint,
    channel: Channel,
}

/// A gate that lets in whoever watches when this says so.
struct Watching<F>(F);

impl<F: Fn() -> gate::Checked<'static> + Send + Sync + 'static> Gate for Watching<F> {
    fn admin<'a>(&'a self, credentials: &'a Credentials) -> gate::Checked<'a> {
        Open.admin(credentials)
    }

    fn anybody<'a>(&'a self, credentials: &'a Credentials) -> gate::Checked<'a> {
        Open.anybody(credentials)
    }

    fn anybody_now<'a>(&'a self, credentials: &'a Credentials) -> gate::Checked<'a> {
        Open.anybody_now(credentials)
    }

    fn watch<'a>(&'a self, _: &'a Credentials, _: &'a [u8], _: &'a [u8]) -> gate::Checked<'a> {
        (self.0)()
    }
}

impl Fixture {
    async fn new() -> Self {
        Self::with_gate(Arc::new(Open)).await
    }

    async fn with_gate(gate: Arc<dyn Gate>) -> Self {
        let history = Arc::new(FakeHistory::default());
        let hub = Hub::start(history.clone(), Settings::default()).expect("threads");
        let options =
            WatchOptions { progress_interval: Duration::from_millis(100), max_request_bytes: 0 };
        let service = WatchServer::new(WatchService::new(hub.clone(), IDENTITY, options, gate));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let incoming = TcpIncoming::from(listener);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect().await.expect("connected");
        Self { history, hub, endpoint, channel }
    }

    fn put(&self, key: &'static str, bytes: usize) {
        self.commit(&[Change::Put(key, vec![1; bytes])]);
    }

    fn commit(&self, changes: &[Change]) {
        let revision = self.history.commit(changes);
        self.hub.publish(vec![revision], self.history.visible());
    }

    async fn open(&self) -> Client {
        Self::open_on(self.channel.clone()).await
    }

    async fn open_on(channel: Channel) -> Client {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = WatchClient::new(channel);
        let answers = client.watch(ReceiverStream::new(receiver)).await.expect("a stream");
        Client { requests: Some(requests), answers: answers.into_inner() }
    }
}

struct Client {
    requests: Option<mpsc::Sender<WatchRequest>>,
    answers: Streaming<WatchResponse>,
}

impl Client {
    async fn send(&self, union: RequestUnion) {
        let requests = self.requests.as_ref().expect("not closed");
        requests.send(WatchRequest { request_union: Some(union) }).await.expect("sent");
    }

    async fn create(&self, create: WatchCreateRequest) {
        self.send(RequestUnion::CreateRequest(create)).await;
    }

    async fn progress(&self) {
        self.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    }

    async fn cancel(&self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })).await;
    }

    async fn next(&mut self) -> Result<WatchResponse, Status> {
        let answer = tokio::time::timeout(DEADLINE, self.answers.message()).await;
        answer.expect("an answer in time").map(|answer| answer.expect("no end without a status"))
    }

    /// The next answer, in short.
    async fn line(&mut self) -> String {
        let answer = self.next().await.expect("an answer");
        let header = answer.header.expect("a header");
        assert_eq!((header.cluster_id, header.member_id, header.raft_term), (11, 12, 13));
        let mut line = format!("{} rev={}", answer.watch_id, header.revision);
        for (name, set) in [
            (" created".to_owned(), answer.created),
            (" canceled".to_owned(), answer.canceled),
            (" fragment".to_owned(), answer.fragment),
            (format!(" compacted={}", answer.compact_revision), answer.compact_revision != 0),
            (format!(" reason={}", answer.cancel_reason), !answer.cancel_reason.is_empty()),
        ] {
            if set {
                line += &name;
            }
        }
        for event in answer.events {
            let kv = event.kv.expect("a key");
            let kind = if event.r#type == 0 { "PUT" } else { "DELETE" };
            line += &format!(" {kind} {}@{}", String::from_utf8_lossy(&kv.key), kv.mod_revision);
            if let Some(previous) = event.prev_kv {
                line += &format!(" was@{}", previous.mod_revision);
            }
        }
        line
    }
}

fn create(key: &'static str, watch_id: i64, start_revision: i64) -> WatchCreateRequest {
    let key = Bytes::from_static(key.as_bytes());
    WatchCreateRequest { key, watch_id, start_revision, ..Default::default() }
}

/// What a cluster has to be asked for each is asked for all at once.
#[tokio::test]
async fn watchers_of_a_stream_do_not_wait_for_one_another() {
    const MANY: i64 = 100;
    // It tells nobody that the server is caught up until so many have asked.
    let together = Arc::new(tokio::sync::Barrier::new(MANY as usize));
    let gate = Watching(move || -> gate::Checked<'static> {
        let together = together.clone();
        Box::pin(async move {
            together.wait().await;
            Ok(())
        })
    });
    let fixture = Fixture::with_gate(Arc::new(gate)).await;
    let mut client = fixture.open().await;
    for id in (1..=MANY).rev() {
        client.create(create("k", id, 0)).await;
    }
    client.cancel(7).await;
    for id in (1..=MANY).rev() {
        assert_eq!(client.line().await, format!("{id} rev=1 created"));
    }
    assert_eq!(client.line().await, "7 rev=1 canceled");
}

/// Neither let in nor told that it may not: clients try again, perhaps elsewhere.
#[tokio::test]
async fn a_watch_that_nobody_can_judge_ends_its_stream() {
    for start in [0, 1] {
        let cut_off =
            || -> gate::Checked<'static> { Box::pin(std::future::ready(Err(Error::TimedOut))) };
        let fixture = Fixture::with_gate(Arc::new(Watching(cut_off))).await;
        let mut client = fixture.open().await;
        client.create(create("k", 1, start)).await;
        let status = client.next().await.expect_err("no answer");
        let told = (status.code(), status.message());
        assert_eq!(told, (tonic::Code::Unavailable, "etcdserver: request timed out"));
    }
}

/// The answers are those that etcd 3.7.3 gives to the same requests.
#[tokio::test]
async fn a_stream_answers_as_etcd_does() {
    let fixture = Fixture::new().await;
    for _ in 0..5 {
        fixture.put("k", 1);
    }
    fixture.history.compact(4);
    let mut client = fixture.open().await;
    client.create(create("k", 50, 3)).await;
    assert_eq!(client.line().await, "50 rev=6 created");
    assert_eq!(client.line().await, "50 rev=0 canceled compacted=4");
    client.create(create("k", 50, 0)).await;
    let reason = "mvcc: duplicate watch ID provided on the WatchStream";
    assert_eq!(client.line().await, format!("-1 rev=6 created canceled reason={reason}"));
    client.progress().await;
    client.create(create("k", 51, 6)).await;
    assert_eq!(client.line().await, "51 rev=6 created");
    assert_eq!(client.line().await, "51 rev=6 PUT k@6");
    client.cancel(50).await;
    assert_eq!(client.line().await, "50 rev=6 canceled");
    client.progress().await;
    assert_eq!(client.line().await, "-1 rev=6");
    // From the next revision on: no progress before there is one.
    client.create(create("k", 52, 7)).await;
    assert_eq!(client.line().await, "52 rev=6 created");
    client.progress().await;
    client.cancel(999).await;
    client.create(create("k", 0, -1)).await;
    let reason = "etcdserver: mvcc: required revision has been compacted";
    assert_eq!(client.line().await, format!("-1 rev=6 created canceled reason={reason}"));
    client.cancel(51).await;
    assert_eq!(client.line().await, "51 rev=6 canceled");
    let everything = WatchCreateRequest {
        range_end: Bytes::from_static(b"\0"),
        prev_kv: true,
        ..create("", -7, 0)
    };
    client.create(everything).await;
    assert_eq!(client.line().await, "-7 rev=6 created");
    client.cancel(52).await;
    assert_eq!(client.line().await, "52 rev=6 canceled");
    fixture.commit(&[Change::Put("n", vec![]), Change::Delete("k"), Change::Put("a", vec![])]);
    assert_eq!(client.line().await, "-7 rev=7 PUT n@7 DELETE k@7 was@6 PUT a@7");
}

#[tokio::test]
async fn large_answers_are_cut_for_those_who_accept_it() {
    let fixture = Fixture::new().await;
    let mut client = fixture.open().await;
    let range_end = Bytes::from_static(b"\0");
    let cut =
        WatchCreateRequest { fragment: true, range_end: range_end.clone(), ..create("a", 1, 0) };
    client.create(cut).await;
    assert_eq!(client.line().await, "1 rev=1 created");
    let put = |key| Change::Put(key, vec![1; 200_000]);
    fixture.commit(&[put("a"), put("b"), put("c"), put("d"), put("e")]);
    assert_eq!(client.line().await, "1 rev=2 fragment PUT a@2 PUT b@2");
    assert_eq!(client.line().await, "1 rev=2 fragment PUT c@2 PUT d@2");
    assert_eq!(client.line().await, "1 rev=2 PUT e@2");
    client.cancel(1).await;
    assert_eq!(client.line().await, "1 rev=2 canceled");
    client.create(WatchCreateRequest { range_end, ..create("a", 2, 2) }).await;
    assert_eq!(client.line().await, "2 rev=2 created");
    assert_eq!(client.line().await, "2 rev=2 PUT a@2 PUT b@2 PUT c@2 PUT d@2 PUT e@2");
}

#[tokio::test]
async fn idle_watchers_hear_of_progress_also_after_the_last_request() {
    let fixture = Fixture::new().await;
    let mut client = fixture.open().await;
    client.create(WatchCreateRequest { progress_notify: true, ..create("k", 3, 0) }).await;
    assert_eq!(client.line().await, "3 rev=1 created");
    client.requests = None;
    assert_eq!(client.line().await, "3 rev=1");
    fixture.put("other", 1);
    let end = Instant::now() + DEADLINE;
    while client.line().await != "3 rev=2" {
        assert!(Instant::now() < end, "progress does not advance");
    }
    fixture.put("k", 1);
    while client.line().await != "3 rev=3 PUT k@3" {
        assert!(Instant::now() < end, "the event does not come");
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_forgotten() {
    let fixture = Fixture::new().await;
    let mut client = fixture.open().await;
    client.create(create("k", 0, 0)).await;
    assert_eq!(client.line().await, "0 rev=1 created");
    assert_eq!((fixture.hub.stats().streams(), fixture.hub.stats().watchers()), (1, 1));
    drop(client);
    let end = Instant::now() + DEADLINE;
    while fixture.hub.stats().streams() + fixture.hub.stats().watchers() > 0 {
        assert!(Instant::now() < end, "still there");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_are_bounded_and_delay_nobody() {
    const STALLED: usize = 20;
    const EVENTS: i64 = 2000;
    let fixture = Fixture::new().await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut client = fixture.open().await;
        client.create(create("k", 0, 0)).await;
        assert_eq!(client.line().await, "0 rev=1 created");
        stalled.push(client);
    }
    // On a connection of its own: the client's end of the other one is full.
    let channel = fixture.endpoint.connect().await.expect("connected");
    let mut fast = Fixture::open_on(channel).await;
    fast.create(create("k", 0, 0)).await;
    assert_eq!(fast.line().await, "0 rev=1 created");
    for revision in 2..2 + EVENTS {
        fixture.put("k", 10_000);
        assert_eq!(fast.line().await, format!("0 rev={revision} PUT k@{revision}"));
    }
    let stats = fixture.hub.stats();
    assert!(stats.events_pending() < 120 * STALLED as i64, "{}", stats.events_pending());
    assert_eq!(stats.slow_watchers(), STALLED as i64);
    let readers = stalled.into_iter().map(|mut client| async move {
        let mut next = 2;
        while next < 2 + EVENTS {
            for event in client.next().await.expect("events").events {
                assert_eq!(event.kv.map(|kv| kv.mod_revision), Some(next));
                next += 1;
            }
        }
    });
    let readers: Vec<_> = readers.map(tokio::spawn).collect();
    for reader in readers {
        reader.await.expect("all events in order");
    }
}

#[tokio::test]
async fn a_server_that_stops_tells_clients_to_go_elsewhere() {
    let fixture = Fixture::new().await;
    let mut client = fixture.open().await;
    client.create(create("k", 0, 0)).await;
    assert_eq!(client.line().await, "0 rev=1 created");
    let hub = fixture.hub.clone();
    tokio::task::spawn_blocking(move || hub.close()).await.expect("closed");
    let status = client.next().await.expect_err("the end");
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert_eq!(status.message(), "etcdserver: server stopped");
    let mut late = WatchClient::new(fixture.channel.clone());
    let status = late.watch(tokio_stream::empty()).await.expect_err("refused");
    assert_eq!(status.message(), "etcdserver: server stopped");
}
