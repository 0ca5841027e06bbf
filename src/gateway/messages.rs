//! Counts the messages of gRPC bodies as they pass.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::body::Body as LocalBody;

use crate::telemetry::Metrics;
use crate::telemetry::methods::Method;

/// Bytes before each message: whether it is compressed, and its length.
pub const PREFIX: usize = 5;

/// What is before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Whether the message is compressed.
    pub compressed: bool,
    /// Its bytes, without the prefix.
    pub length: usize,
}

impl Prefix {
    /// Reads a prefix.
    pub fn read(prefix: [u8; PREFIX]) -> Self {
        let [flag, length @ ..] = prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        Self { compressed: flag != 0, length }
    }
}

/// A message, not compressed, with what is before it.
pub fn framed(message: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.push(0);
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(message);
    frame.into()
}

/// Finds where messages begin in a body that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// What has come of the next message's prefix.
    prefix: [u8; PREFIX],
    filled: usize,
    /// Bytes of the current message that are still to come.
    left: usize,
}

impl Messages {
    /// Takes in a piece; returns how many messages it lets begin.
    pub(super) fn count(&mut self, mut piece: &[u8]) -> u64 {
        let mut begun = 0;
        loop {
            let skipped = self.left.min(piece.len());
            self.left -= skipped;
            piece = &piece[skipped..];
            if piece.is_empty() {
                return begun;
            }
            let taken = (PREFIX - self.filled).min(piece.len());
            self.prefix[self.filled..self.filled + taken].copy_from_slice(&piece[..taken]);
            self.filled += taken;
            piece = &piece[taken..];
            if self.filled == PREFIX {
                self.left = Prefix::read(self.prefix).length;
                self.filled = 0;
                begun += 1;
            }
        }
    }
}

/// Where the body of a call comes from.
#[derive(Debug)]
pub enum Inbound {
    /// A connection.
    Network(Incoming),
    /// This process.
    Local(LocalBody),
}

/// What goes wrong with a body.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body, whose messages are counted.
#[derive(Debug)]
pub struct RequestBody {
    body: Inbound,
    messages: Messages,
    method: Method,
    metrics: Arc<Metrics>,
    bytes: Arc<AtomicU64>,
}

impl RequestBody {
    /// Counts the messages of `body` for `method`, and all their bytes in `bytes`.
    pub fn new(
        body: Inbound,
        method: Method,
        metrics: Arc<Metrics>,
        bytes: Arc<AtomicU64>,
    ) -> Self {
        Self { body, messages: Messages::default(), method, metrics, bytes }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame =
            match &mut self.body {
                Inbound::Network(body) => ready!(Pin::new(body).poll_frame(context))
                    .map(|frame| frame.map_err(Into::into)),
                Inbound::Local(body) => ready!(Pin::new(body).poll_frame(context))
                    .map(|frame| frame.map_err(Into::into)),
            };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let begun = self.messages.count(data);
            self.metrics.grpc.received(self.method, begun);
            self.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Inbound::Network(body) => body.is_end_stream(),
            Inbound::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Inbound::Network(body) => body.size_hint(),
            Inbound::Local(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_as_they_are_written() {
        let message = [7; 70_000];
        let frame = framed(&message);
        assert_eq!(frame[..PREFIX], [0, 0, 1, 0x11, 0x70]);
        assert_eq!(frame[PREFIX..], message);
        let read = |first| Prefix::read([first, 0, 1, 0x11, 0x70]);
        assert_eq!(read(0), Prefix { compressed: false, length: message.len() });
        assert_eq!(read(1), Prefix { compressed: true, length: message.len() });
    }

    #[test]
    fn messages_are_found_however_the_body_is_cut() {
        let lengths = [0, 1, 300, 0, 7];
        let body: Vec<u8> =
            lengths.iter().flat_map(|&length| framed(&vec![0xff; length])).collect();
        for size in 1..=body.len() {
            let mut messages = Messages::default();
            let begun: u64 = body.chunks(size).map(|piece| messages.count(piece)).sum();
            assert_eq!(begun, lengths.len() as u64, "in pieces of {size}");
        }
    }
}
