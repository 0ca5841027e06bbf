//! An Oxia node in this process that speaks the contract under its newer name, and misbehaves when
//! told to. It knows just enough: one shard, appends, plain puts, no conditions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use leaseway::backend::oxia::client::{Address, sequence_key, sequence_number};
use leaseway_proto::oxia::oxia_client_server::{OxiaClient, OxiaClientServer};
use leaseway_proto::oxia::shard_assignment::ShardBoundaries;
use leaseway_proto::oxia::*;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status as Answer, Streaming};

/// The shard that the fake has.
pub const SHARD: i64 = 7;

/// What the nodes of a cluster share.
#[derive(Default)]
pub struct Store {
    pub records: BTreeMap<String, Bytes>,
    /// Keys put under a session.
    pub attached: BTreeMap<i64, Vec<String>>,
    pub offset: i64,
    /// What notifications tell.
    pub notifications: Vec<NotificationBatch>,
}

/// How a node behaves; may be changed at any time.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Who leads, by its word.
    pub leader: String,
    /// It refuses what only a leader may do.
    pub deposed: bool,
    /// It accepts connections and calls and doesn't answer, as a paused process.
    pub silent: bool,
    /// It reads writes, and applies and answers none.
    pub holding: bool,
    /// It offers the proposed calls for sessions.
    pub sessions: bool,
    /// Raised to end every stream from it.
    pub cuts: u64,
}

/// What a node was asked.
#[derive(Default)]
pub struct Seen {
    /// Namespace, shard and authorization of each write stream.
    pub streams: Vec<[Option<String>; 3]>,
    pub writes: Vec<WriteRequest>,
    pub get_session: usize,
    pub starts: Vec<Option<i64>>,
}

#[derive(Clone)]
pub struct Node {
    pub address: Address,
    behaviour: Arc<watch::Sender<Behaviour>>,
    seen: Arc<Mutex<Seen>>,
    store: Arc<Mutex<Store>>,
}

impl Node {
    /// Starts a node that says it leads.
    pub async fn start(store: &Arc<Mutex<Store>>) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at: SocketAddr = listener.local_addr().expect("its address");
        let behaviour = Behaviour { leader: at.to_string(), ..Behaviour::default() };
        let node = Node {
            address: at.to_string().parse().expect("an address"),
            behaviour: Arc::new(watch::channel(behaviour).0),
            seen: Arc::default(),
            store: store.clone(),
        };
        let server = tonic::transport::Server::builder()
            .add_service(OxiaClientServer::new(node.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        // Ends with the test's runtime.
        tokio::spawn(server);
        node
    }

    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        self.behaviour.send_modify(change);
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic elsewhere")
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no panic elsewhere")
    }

    /// Returns when the node isn't silent.
    async fn awake(&self) -> Behaviour {
        let mut behaviour = self.behaviour.subscribe();
        behaviour.wait_for(|b| !b.silent).await.expect("held by the node").clone()
    }

    /// The same, refusing what a leader alone may do.
    async fn leading(&self) -> Result<(), Answer> {
        match self.awake().await.deposed {
            true => Err(Answer::new(Code::Aborted, "oxia: node is not leader")),
            false => Ok(()),
        }
    }

    /// Returns when streams are to end that began at this count.
    async fn cut(&self, began: u64) {
        let mut behaviour = self.behaviour.subscribe();
        behaviour.wait_for(|b| b.cuts > began).await.expect("held by the node");
    }

    fn apply(&self, request: WriteRequest) -> WriteResponse {
        let mut store = self.store();
        store.offset += 1;
        let offset = store.offset;
        let mut puts = Vec::new();
        for put in request.puts {
            let key = match put.sequence_key_delta.first() {
                None => put.key,
                Some(step) => sequence_key(&put.key, last(&store, &put.key) + step),
            };
            if let Some(session) = put.session_id {
                store.attached.entry(session).or_default().push(key.clone());
            }
            store.records.insert(key.clone(), put.value);
            let version = Some(Version { version_id: offset, ..Version::default() });
            puts.push(PutResponse { status: Status::Ok.into(), version, key: Some(key) });
        }
        let gone = |delete: DeleteRequest| {
            let status = match store.records.remove(&delete.key) {
                Some(_) => Status::Ok,
                None => Status::KeyNotFound,
            };
            DeleteResponse { status: status.into() }
        };
        let deletes = request.deletes.into_iter().map(gone).collect();
        WriteResponse { puts, deletes, delete_ranges: vec![] }
    }
}

/// The newest number of a sequence.
fn last(store: &Store, prefix: &str) -> u64 {
    let newest = store.records.range(..=sequence_key(prefix, u64::MAX)).next_back();
    newest.and_then(|(key, _)| sequence_number(prefix, key)).unwrap_or(0)
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Answer>> + Send>>;

fn once<T: Send + 'static>(answer: T) -> Response<Answers<T>> {
    Response::new(Box::pin(tokio_stream::once(Ok(answer))))
}

#[tonic::async_trait]
impl OxiaClient for Node {
    type GetShardAssignmentsStream = Answers<ShardAssignments>;
    type WriteStreamStream = Answers<WriteResponse>;
    type ReadStream = Answers<ReadResponse>;
    type ListStream = Answers<ListResponse>;
    type RangeScanStream = Answers<RangeScanResponse>;
    type GetSequenceUpdatesStream = Answers<GetSequenceUpdatesResponse>;
    type GetNotificationsStream = Answers<NotificationBatch>;

    async fn get_shard_assignments(
        &self,
        request: Request<ShardAssignmentsRequest>,
    ) -> Result<Response<Answers<ShardAssignments>>, Answer> {
        self.awake().await;
        let namespace = request.into_inner().namespace;
        let mut behaviour = self.behaviour.subscribe();
        let (answers, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut told = None;
            loop {
                let now = behaviour.borrow_and_update().clone();
                if !now.silent && told.as_ref() != Some(&now.leader) {
                    let range =
                        Int32HashRange { min_hash_inclusive: 0, max_hash_inclusive: u32::MAX };
                    let shard = ShardAssignment {
                        shard: SHARD,
                        leader: now.leader.clone(),
                        shard_boundaries: Some(ShardBoundaries::Int32HashRange(range)),
                    };
                    let shards = NamespaceShardsAssignment {
                        assignments: vec![shard],
                        shard_key_router: ShardKeyRouter::Xxhash3.into(),
                        key_sorting: KeySorting::Hierarchical.into(),
                    };
                    let namespaces = [(namespace.clone(), shards)].into();
                    if answers.send(Ok(ShardAssignments { namespaces })).await.is_err() {
                        return;
                    }
                    told = Some(now.leader);
                }
                tokio::select! {
                    changed = behaviour.changed() => if changed.is_err() { return },
                    () = answers.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<Answers<WriteResponse>>, Answer> {
        let metadata = ["namespace", "shard-id", "authorization"].map(|name| {
            let value = request.metadata().get(name)?;
            value.to_str().ok().map(str::to_owned)
        });
        self.seen().streams.push(metadata);
        self.leading().await?;
        let (answers, stream) = mpsc::channel(1);
        let (node, began) = (self.clone(), self.behaviour.borrow().cuts);
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            loop {
                let request = tokio::select! {
                    request = requests.next() => request,
                    () = node.cut(began) => {
                        let _ = answers.send(Err(Answer::aborted("oxia: node is not leader"))).await;
                        return;
                    }
                };
                let Some(Ok(request)) = request else { return };
                node.seen().writes.push(request.clone());
                node.awake().await;
                let holding = node.behaviour.borrow().holding;
                if !holding && answers.send(Ok(node.apply(request))).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Answers<ReadResponse>>, Answer> {
        self.leading().await?;
        let request = request.into_inner();
        assert_eq!(request.shard, Some(SHARD));
        let store = self.store();
        let gets = request.gets.into_iter().map(|get| {
            let found = match get.comparison_type() {
                KeyComparisonType::Floor => store.records.range(..=get.key.clone()).next_back(),
                _ => store.records.get_key_value(&get.key),
            };
            let status = if found.is_some() { Status::Ok } else { Status::KeyNotFound };
            GetResponse {
                status: status.into(),
                version: None,
                value: found.map(|(_, value)| value.clone()),
                key: found.map(|(key, _)| key.clone()),
            }
        });
        Ok(once(ReadResponse { gets: gets.collect() }))
    }

    async fn list(
        &self,
        request: Request<ListRequest>,
    ) -> Result<Response<Answers<ListResponse>>, Answer> {
        self.leading().await?;
        let request = request.into_inner();
        let (store, sessions) = (self.store(), self.behaviour.borrow().sessions);
        let range = request.start_inclusive..request.end_exclusive;
        let keys = match request.session_id.filter(|_| sessions) {
            Some(session) => store.attached.get(&session).cloned().unwrap_or_default(),
            None => store.records.keys().cloned().collect(),
        };
        Ok(once(ListResponse {
            keys: keys.into_iter().filter(|key| range.contains(key)).collect(),
        }))
    }

    async fn range_scan(
        &self,
        _: Request<RangeScanRequest>,
    ) -> Result<Response<Answers<RangeScanResponse>>, Answer> {
        Err(Answer::unimplemented("not needed"))
    }

    async fn get_sequence_updates(
        &self,
        _: Request<GetSequenceUpdatesRequest>,
    ) -> Result<Response<Answers<GetSequenceUpdatesResponse>>, Answer> {
        Err(Answer::unimplemented("not needed"))
    }

    async fn get_notifications(
        &self,
        request: Request<NotificationsRequest>,
    ) -> Result<Response<Answers<NotificationBatch>>, Answer> {
        self.leading().await?;
        let start = request.into_inner().start_offset_exclusive;
        self.seen().starts.push(start);
        let batches: Vec<_> = {
            let store = self.store();
            match start {
                None => vec![NotificationBatch { offset: store.offset, ..Default::default() }],
                Some(start) => store
                    .notifications
                    .iter()
                    .filter(|batch| batch.offset > start)
                    .cloned()
                    .collect(),
            }
        };
        let (answers, stream) = mpsc::channel(1);
        let (node, began) = (self.clone(), self.behaviour.borrow().cuts);
        tokio::spawn(async move {
            for batch in batches {
                if answers.send(Ok(batch)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = node.cut(began) => {}
                () = answers.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn create_session(
        &self,
        _: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Answer> {
        self.leading().await?;
        let mut store = self.store();
        store.offset += 1;
        let session_id = store.offset;
        store.attached.insert(session_id, vec![]);
        Ok(Response::new(CreateSessionResponse { session_id }))
    }

    async fn keep_alive(
        &self,
        request: Request<SessionHeartbeat>,
    ) -> Result<Response<KeepAliveResponse>, Answer> {
        self.leading().await?;
        match self.store().attached.contains_key(&request.into_inner().session_id) {
            true => Ok(Response::new(KeepAliveResponse {})),
            false => Err(Answer::not_found("oxia: session not found")),
        }
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Answer> {
        self.leading().await?;
        match self.store().attached.remove(&request.into_inner().session_id) {
            Some(_) => Ok(Response::new(CloseSessionResponse {})),
            None => Err(Answer::not_found("oxia: session not found")),
        }
    }

    async fn get_session(
        &self,
        request: Request<GetSessionRequest>,
    ) -> Result<Response<GetSessionResponse>, Answer> {
        self.seen().get_session += 1;
        if !self.behaviour.borrow().sessions {
            return Err(Answer::unimplemented("unknown method GetSession"));
        }
        match self.store().attached.contains_key(&request.into_inner().session_id) {
            true => Ok(Response::new(GetSessionResponse {
                session_timeout_ms: 10_000,
                remaining_ms: 4_000,
                client_identity: "me".into(),
            })),
            false => Err(Answer::not_found("oxia: session not found")),
        }
    }
}
