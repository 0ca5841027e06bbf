//! The answers of a call: messages out of the body that a service answers with, and as lines.

use super::print::print;
use super::status;
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use leaseway_proto::schema::Message;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The messages of an answer.
pub struct Messages {
    body: Body,
    buffer: BytesMut,
    ended: bool,
}

impl Messages {
    /// Those in `body`.
    pub fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), ended: false }
    }

    /// The next message; none behind the last.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            if let Some(message) = self.take() {
                return Poll::Ready(Some(message));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            match frame {
                None => self.ended = true,
                Some(Err(status)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(status)));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => {
                        self.ended = true;
                        if let Some(Err(status)) = frame.trailers_ref().map(check) {
                            return Poll::Ready(Some(Err(status)));
                        }
                    }
                },
            }
        }
    }

    fn take(&mut self) -> Option<Result<Bytes, Status>> {
        let (flag, length) = match self.buffer[..] {
            [flag, a, b, c, d, ..] => (flag, u32::from_be_bytes([a, b, c, d]) as usize),
            _ => return None,
        };
        if flag != 0 {
            self.ended = true;
            self.buffer.clear();
            return Some(Err(Status::internal("an answer came compressed")));
        }
        if self.buffer.len() < PREFIX + length {
            self.buffer.reserve(PREFIX + length - self.buffer.len());
            return None;
        }
        self.buffer.advance(PREFIX);
        Some(Ok(self.buffer.split_to(length).freeze()))
    }
}

/// The error in headers or trailers, if there is one.
pub fn check(headers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// The messages of a stream as lines of JSON. The first error is the last line.
pub struct Lines {
    messages: Messages,
    shape: &'static Message,
    ended: bool,
}

impl Lines {
    /// Lines for the messages in `body`.
    pub fn new(body: Body, shape: &'static Message) -> Self {
        Self { messages: Messages::new(body), shape, ended: false }
    }

    /// The next line, or the error that is to be the last one.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let message = ready!(self.messages.poll_next(context));
        let line = message.map(|message| self.line(&message?));
        self.ended = !matches!(line, Some(Ok(_)));
        Poll::Ready(line)
    }

    fn line(&self, message: &[u8]) -> Result<Bytes, Status> {
        let mut line = b"{\"result\":".to_vec();
        let printed = print(self.shape, message, &mut line);
        printed.map_err(|error| Status::internal(error.to_string()))?;
        line.extend_from_slice(b"}\n");
        Ok(line.into())
    }
}

/// A body of lines.
pub struct LinesBody {
    first: Option<Bytes>,
    rest: Lines,
}

impl LinesBody {
    /// A line that has been taken, and what follows.
    pub fn new(first: Bytes, rest: Lines) -> Self {
        Self { first: Some(first), rest }
    }
}

impl http_body::Body for LinesBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let line = ready!(self.rest.poll_next(context));
        let line = line.map(|line| line.unwrap_or_else(|error| status::error_line(&error)));
        Poll::Ready(line.map(|line| Ok(Frame::data(line))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.ended
    }
}
