//! Streams in both directions: what was sent, and a log of all that came back.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::client::{Client, End};
use crate::json;
use crate::schema::Method;

/// What has come back on one stream.
#[derive(Debug, Default)]
pub struct Log {
    /// The messages in the order of their arrival.
    pub messages: Vec<DynamicMessage>,
    /// How the stream ended, once it has.
    pub end: Option<End>,
}

/// One stream to one server.
#[derive(Debug)]
pub struct BiStream {
    requests: Option<mpsc::UnboundedSender<Bytes>>,
    log: Arc<Mutex<Log>>,
    arrival: Arc<Notify>,
    reader: JoinHandle<()>,
}

impl BiStream {
    /// Opens a stream. A server may answer nothing before it has the first request, so this does
    /// not wait for it.
    pub fn open(client: &Client, method: &'static Method) -> BiStream {
        let (requests, receiver) = mpsc::unbounded_channel();
        let log = Arc::new(Mutex::new(Log::default()));
        let arrival = Arc::new(Notify::new());
        let task = read(client.clone(), method, receiver, log.clone(), arrival.clone());
        BiStream { requests: Some(requests), log, arrival, reader: tokio::spawn(task) }
    }

    /// Sends a request; lost when the stream has ended, which the log tells.
    pub fn send(&self, request: &DynamicMessage) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request.encode_to_vec().into());
        }
    }

    /// Ends the sending side.
    pub fn close(&mut self) {
        self.requests = None;
    }

    /// What has come back so far.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for BiStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(
    client: Client,
    method: &'static Method,
    requests: mpsc::UnboundedReceiver<Bytes>,
    log: Arc<Mutex<Log>>,
    arrival: Arc<Notify>,
) {
    let lock = || log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(socket) = client.socket(method) {
        let take = |message| {
            lock().messages.push(message);
            arrival.notify_one();
        };
        let end = json::run(socket, method, requests, take).await;
        lock().end = Some(end);
        arrival.notify_one();
        return;
    }
    let opened = client.stream(&method.path, UnboundedReceiverStream::new(requests)).await;
    let end = match opened {
        Err(status) => End::from(status),
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(bytes)) => match decode(&method.output, bytes) {
                    Ok(message) => lock().messages.push(message),
                    Err(end) => break end,
                },
                Ok(None) => break End::Ok,
                Err(status) => break End::from(status),
            }
            arrival.notify_one();
        },
    };
    lock().end = Some(end);
    arrival.notify_one();
}

fn decode(descriptor: &MessageDescriptor, bytes: Bytes) -> Result<DynamicMessage, End> {
    DynamicMessage::decode(descriptor.clone(), bytes).map_err(|e| End::Unreadable(e.to_string()))
}

/// The same stream to both servers.
#[derive(Debug)]
pub struct StreamPair {
    /// To the reference.
    pub reference: BiStream,
    /// To the subject.
    pub subject: BiStream,
}

impl StreamPair {
    /// Waits until `met` holds for both logs; false when it does not within `time`.
    pub async fn wait(&self, time: Duration, met: impl Fn(&Log) -> bool) -> bool {
        let deadline = Instant::now() + time;
        wait_for(&self.reference, deadline, &met).await
            && wait_for(&self.subject, deadline, &met).await
    }
}

/// Waits until `met` holds for a stream's log; false when it does not before `deadline`.
pub async fn wait_for(stream: &BiStream, deadline: Instant, met: impl Fn(&Log) -> bool) -> bool {
    loop {
        if met(&stream.log()) {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let _ = tokio::time::timeout(left, stream.arrival.notified()).await;
    }
}
