//! The requests of a call, as they come: on a connection, or on a websocket.

use super::parse::parse;
use super::scan::Scanner;
use super::status;
use crate::gateway::messages::framed;
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use leaseway_proto::schema::Message;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tonic::Status;

/// Where text comes from.
pub enum Source {
    /// The body of an HTTP request.
    Http(Incoming),
    /// The messages of a websocket.
    Socket(mpsc::Receiver<Bytes>),
}

impl Source {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self {
            Self::Socket(messages) => messages.poll_recv(context).map(|message| message.map(Ok)),
            Self::Http(body) => loop {
                let frame = match ready!(Pin::new(&mut *body).poll_frame(context)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => {
                        return Poll::Ready(Some(Err(Status::cancelled(error.to_string()))));
                    }
                    Some(Ok(frame)) => frame,
                };
                if let Ok(data) = frame.into_data() {
                    return Poll::Ready(Some(Ok(data)));
                }
            },
        }
    }

    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Takes in the text of a single request: all there is on a connection, on a websocket up to the end
    /// of the first value. What goes beyond `max` bytes is thrown away, and an error.
    async fn whole(&mut self, max: usize) -> Result<BytesMut, Status> {
        let mut text = BytesMut::new();
        let mut scanner = Scanner::default();
        while let Some(piece) = self.next().await {
            text.extend_from_slice(&piece?);
            if text.len() > max {
                let length = text.len();
                drop(text);
                return Err(status::too_large(length.saturating_add(self.discard().await), max));
            }
            let complete =
                matches!(self, Self::Socket(_)) && scanner.next(&text, false) != Ok(None);
            if complete {
                break;
            }
        }
        Ok(text)
    }

    /// Reads on without keeping anything; returns how many bytes there were.
    async fn discard(&mut self) -> usize {
        let mut discarded = 0;
        while discarded < DISCARDED_MAX {
            match self.next().await {
                Some(Ok(piece)) => discarded += piece.len(),
                _ => break,
            }
        }
        discarded
    }
}

/// Bytes of a request that is refused that are read all the same: a client that still sends does not look
/// for an answer.
const DISCARDED_MAX: usize = 64 * 1024 * 1024;

/// The single request of a call, encoded. Nothing stands for an empty message; what follows the first
/// value is not looked at.
///
/// # Errors
/// What is wrong with it.
pub async fn single(
    mut source: Source,
    shape: &'static Message,
    max: usize,
) -> Result<Bytes, Status> {
    let text = source.whole(max).await?;
    let place = Scanner::default().next(&text, true).map_err(Status::invalid_argument)?;
    let message = match place {
        Some(place) => parse(shape, &text[place]).map_err(Status::invalid_argument)?,
        None => Vec::new(),
    };
    Ok(framed(&message))
}

/// The requests of a stream as the body of a gRPC call. Ends with the error of the first one that is
/// wrong.
pub struct Requests {
    source: Source,
    shape: &'static Message,
    /// Longest text of one request, in bytes.
    max: usize,
    scanner: Scanner,
    text: BytesMut,
    /// Nothing more comes from the source.
    drained: bool,
    failed: bool,
}

impl Requests {
    /// Requests of one shape.
    pub fn new(source: Source, shape: &'static Message, max: usize) -> Self {
        let (scanner, text) = (Scanner::default(), BytesMut::new());
        Self { source, shape, max, scanner, text, drained: false, failed: false }
    }

    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        let wrong = |text| Status::invalid_argument(format!("Failed to decode request: {text}"));
        match self.scanner.next(&self.text, self.drained).map_err(wrong)? {
            Some(place) => {
                let end = place.end;
                let message = parse(self.shape, &self.text[place]).map_err(wrong)?;
                self.text.advance(end);
                Ok(Some(framed(&message)))
            }
            None if self.text.len() > self.max => Err(status::too_large(self.text.len(), self.max)),
            None => Ok(None),
        }
    }
}

impl http_body::Body for Requests {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        while !this.failed {
            match this.take() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(None) if this.drained => break,
                Ok(None) => {}
                Err(status) => {
                    this.failed = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
            match ready!(this.source.poll_next(context)) {
                Some(Ok(piece)) => this.text.extend_from_slice(&piece),
                Some(Err(status)) => {
                    this.failed = true;
                    return Poll::Ready(Some(Err(status)));
                }
                None => this.drained = true,
            }
        }
        Poll::Ready(None)
    }
}
