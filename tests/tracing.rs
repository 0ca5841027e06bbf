//! Traces of calls, as an OpenTelemetry collector gets them.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::kv_client::KvClient;
use leaseway_proto::etcdserverpb::watch_client::WatchClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use support::users::connect;
use support::{PATIENCE, Server, free_port};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Hands on what it is sent.
struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let _ = self.0.send(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn collector() -> (String, mpsc::UnboundedReceiver<ExportTraceServiceRequest>) {
    let (sender, received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(Collector(sender)))
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(server);
    (address, received)
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

fn get(key: &str, trace: Option<&'static str>) -> Request<pb::RangeRequest> {
    let mut request = Request::new(pb::RangeRequest {
        key: key.as_bytes().to_vec().into(),
        ..pb::RangeRequest::default()
    });
    if let Some(trace) = trace {
        let value = trace.parse().expect("a header's value");
        request.metadata_mut().insert("traceparent", value);
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn sampled_calls_are_sent_with_their_callers_trace() {
    let (address, mut received) = collector().await;
    let at = format!("--distributed-tracing-address={address}");
    let mut server = Server::start(&[
        "--enable-distributed-tracing",
        &at,
        "--distributed-tracing-service-name=store",
        "--distributed-tracing-instance-id=one",
    ]);
    let channel = connect(server.port).await;
    let mut kv = KvClient::new(channel.clone());
    // The rate is 0: only what callers have decided to trace.
    kv.range(get("a", None)).await.expect("reads");
    let unsampled = "00-11111111111111111111111111111111-1111111111111111-00";
    kv.range(get("a", Some(unsampled))).await.expect("reads");
    let sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    kv.range(get("a", Some(sampled))).await.expect("reads");
    kv.range(get("", Some(sampled))).await.expect_err("no key");
    // Nonsense is nobody's trace.
    kv.range(get("a", Some("00-zz"))).await.expect("reads");
    // A stream is traced to its end.
    let mut watch = Request::new(tokio_stream::pending());
    watch.metadata_mut().insert("traceparent", sampled.parse().expect("a header's value"));
    let stream = WatchClient::new(channel).watch(watch).await.expect("a stream");
    drop(stream);
    server.stop();

    let mut spans: Vec<Span> = Vec::new();
    while spans.len() < 3 {
        let sent = tokio::time::timeout(PATIENCE, received.recv()).await;
        let sent = sent.expect("traces in time").expect("the collector runs");
        for of_resource in sent.resource_spans {
            let resource = texts(&of_resource.resource.expect("a resource").attributes);
            assert_eq!(resource["service.name"], "store");
            assert_eq!(resource["service.instance.id"], "one");
            spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans.sort_by_key(|span| span.start_time_unix_nano);
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let [range, watch] = ["etcdserverpb.KV/Range", "etcdserverpb.Watch/Watch"];
    assert_eq!(names, [range, range, watch]);
    let codes: Vec<String> =
        spans.iter().map(|span| texts(&span.attributes)["rpc.grpc.status_code"].clone()).collect();
    assert_eq!(codes[..2], ["0", "3"], "the status of each");
    for span in &spans {
        assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
        assert_eq!(span.kind, 2, "a server's");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    let attributes = texts(&spans[0].attributes);
    assert_eq!(attributes["rpc.system"], "grpc");
    assert_eq!(attributes["rpc.service"], "etcdserverpb.KV");
    assert_eq!(attributes["rpc.method"], "Range");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_not_waited_for() {
    let nobody = Arc::new(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
    let at = format!("--distributed-tracing-address={}", nobody.local_addr().expect("address"));
    let rate = "--distributed-tracing-sampling-rate=1000000";
    // It takes connections and never answers.
    let mut server = Server::start(&["--enable-distributed-tracing", &at, rate]);
    let mut kv = KvClient::new(connect(server.port).await);
    for _ in 0..3000 {
        kv.range(get("a", None)).await.expect("reads");
    }
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_nobody_has_started_is_said_once() {
    let address = format!("127.0.0.1:{}", free_port());
    let at = format!("--distributed-tracing-address={address}");
    let rate = "--distributed-tracing-sampling-rate=1000000";
    let mut server = Server::start(&["--enable-distributed-tracing", &at, rate]);
    server.wait_for_log("cannot send traces");
    let mut kv = KvClient::new(connect(server.port).await);
    // Several batches, of which each fails.
    for _ in 0..1500 {
        kv.range(get("a", None)).await.expect("reads");
    }
    server.stop();
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("cannot send traces")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&address), "{lines:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
