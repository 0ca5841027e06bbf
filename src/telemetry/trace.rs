//! Traces of calls, sent to an OpenTelemetry collector.
//!
//! Each gRPC call is a span, a child of the caller's where the caller names one (`traceparent`), with
//! the name and the attributes that etcd's have. Spans are sent in the background, in batches, and
//! dropped rather than waited for when the collector is slow or away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as Exporter,
};
use tokio::net::TcpStream;

use super::methods::Method;
use crate::config::TracingConfig;

/// How long the last spans may take to be sent when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the collector may take to be connected to at the start, before the log has a line about it.
const CONNECT: Duration = Duration::from_secs(2);
/// The gRPC statuses that are the server's own failures: Unknown, DeadlineExceeded, Unimplemented,
/// Internal, Unavailable and DataLoss. Others are an answer like any, as the semantic conventions of
/// OpenTelemetry have it.
const FAILURES: [i32; 6] = [2, 4, 12, 13, 14, 15];

/// Makes the spans of calls and sends them.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Traces {
    /// Starts to send to the collector of the configuration, which need not be there yet. To be called
    /// within a runtime.
    ///
    /// # Errors
    /// An address that is none.
    pub fn start(config: &TracingConfig) -> Result<Traces, String> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(format!("http://{}", config.address))
            .build()
            .map_err(|error| format!("--distributed-tracing-address: {error}"))?;
        let collector = Arc::new(Collector::new(config.address.clone()));
        let exporter = Told { exporter, collector: collector.clone() };
        // With few calls sampled it may be long until somebody notices otherwise.
        tokio::spawn(async move { collector.look().await });
        let mut resource = vec![KeyValue::new("service.name", config.service_name.clone())];
        if !config.instance_id.is_empty() {
            resource.push(KeyValue::new("service.instance.id", config.instance_id.clone()));
        }
        let root = match config.sampled_per_million {
            0 => Sampler::AlwaysOff,
            rate => Sampler::TraceIdRatioBased(f64::from(rate) / 1e6),
        };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(Resource::builder_empty().with_attributes(resource).build())
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .build();
        let tracer = provider.tracer("leaseway");
        Ok(Traces { provider, tracer, propagator: TraceContextPropagator::new() })
    }

    /// Begins the span of a call with these headers.
    pub fn begin(&self, method: Method, headers: &HeaderMap) -> CallSpan {
        let parent = self.propagator.extract_with_context(&Context::new(), &Headers(headers));
        let (service, name) = method.names();
        let span = self
            .tracer
            .span_builder(format!("{service}/{name}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", service),
                KeyValue::new("rpc.method", name),
            ])
            .start_with_context(&self.tracer, &parent);
        CallSpan(Box::new(span))
    }

    /// Sends what has not been sent, for a moment at most.
    pub fn stop(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_WORDS) {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Where traces go, for the log: a line when it can't be reached, not one for each batch, and one when it can
/// again.
#[derive(Debug)]
struct Collector {
    address: String,
    away: AtomicBool,
}

impl Collector {
    fn new(address: String) -> Collector {
        Collector { address, away: AtomicBool::new(false) }
    }

    /// Notes whether it could be reached, and says so if that is news.
    fn note(&self, error: Option<&str>) {
        let before = self.away.swap(error.is_some(), Ordering::Relaxed);
        let address = &*self.address;
        match error {
            Some(error) if !before => {
                tracing::warn!(address, error, "cannot send traces; spans are dropped meanwhile");
            }
            None if before => tracing::info!(address, "traces are sent again"),
            _ => {}
        }
    }

    /// Looks whether somebody listens there. Says nothing if so: that it is a collector is another thing.
    async fn look(&self) {
        let error = match tokio::time::timeout(CONNECT, TcpStream::connect(&self.address)).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no connection in time".to_owned(),
        };
        self.note(Some(&error));
    }
}

/// Sends spans, and tells how that goes.
#[derive(Debug)]
struct Told<E> {
    exporter: E,
    collector: Arc<Collector>,
}

impl<E: Exporter> Exporter for Told<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        self.collector.note(sent.as_ref().err().map(ToString::to_string).as_deref());
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The span of a call that has not ended.
#[derive(Debug)]
pub struct CallSpan(Box<Span>);

impl CallSpan {
    /// Ends it with the call's gRPC status.
    pub fn end(mut self, code: i32) {
        self.0.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(code)));
        if FAILURES.contains(&code) {
            self.0.set_status(Status::error(super::grpc::code_label(code)));
        }
        self.0.end();
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
