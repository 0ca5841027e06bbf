//! The answers of a call: messages out of the body that a service answers with, and as lines.

use super::print::print;
use super::status;
use crate::gateway::messages::{PREFIX, Prefix};
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use leaseway_proto::schema::Message;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;

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
                    Ok(data) => {
                        if let Some(message) = self.keep(data) {
                            return Poll::Ready(Some(Ok(message)));
                        }
                    }
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

    /// The first message of what is kept.
    fn take(&mut self) -> Option<Result<Bytes, Status>> {
        match first(&self.buffer) {
            Ok(length) => {
                let length = length?;
                self.buffer.advance(PREFIX);
                Some(Ok(self.buffer.split_to(length).freeze()))
            }
            Err(status) => {
                self.ended = true;
                self.buffer.clear();
                Some(Err(status))
            }
        }
    }

    /// Keeps what has come, but for a message at its beginning where nothing is kept: that is nearly always
    /// all there is, and is not copied.
    fn keep(&mut self, mut data: Bytes) -> Option<Bytes> {
        let whole = if self.buffer.is_empty() { first(&data).unwrap_or_default() } else { None };
        let message = whole.map(|length| {
            data.advance(PREFIX);
            data.split_to(length)
        });
        self.buffer.extend_from_slice(&data);
        message
    }
}

/// The length of the first message, if all of it is there.
fn first(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some((prefix, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let Prefix { compressed, length } = Prefix::read(*prefix);
    if compressed {
        return Err(Status::internal("an answer came compressed"));
    }
    Ok((rest.len() >= length).then_some(length))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::messages::framed;
    use http_body_util::StreamBody;
    use std::task::Waker;

    /// All messages of a body that comes in pieces, and the error at its end.
    fn messages(pieces: Vec<Bytes>) -> (Vec<Bytes>, Option<Status>) {
        let frames = pieces.into_iter().map(|piece| Ok::<_, Status>(Frame::data(piece)));
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let mut messages = Messages::new(Body::new(body));
        let (mut found, mut context) = (Vec::new(), Context::from_waker(Waker::noop()));
        loop {
            match messages.poll_next(&mut context) {
                Poll::Ready(Some(Ok(message))) => found.push(message),
                Poll::Ready(Some(Err(status))) => return (found, Some(status)),
                Poll::Ready(None) => return (found, None),
                Poll::Pending => panic!("everything is there"),
            }
        }
    }

    #[test]
    fn messages_are_found_however_the_body_is_cut() {
        let want = [&b"one"[..], b"", b"three", &[3; 300]].map(Bytes::copy_from_slice);
        let body: Vec<u8> = want.iter().flat_map(|message| framed(message)).collect();
        for size in 1..=body.len() {
            let pieces = body.chunks(size).map(Bytes::copy_from_slice).collect();
            let (found, error) = messages(pieces);
            assert_eq!((found, error.is_none()), (want.to_vec(), true), "in pieces of {size}");
        }
    }

    #[test]
    fn a_message_that_comes_alone_is_not_copied() {
        let frame = framed(b"message");
        let (found, _) = messages(vec![frame.clone()]);
        assert_eq!(found[0].as_ptr(), frame[PREFIX..].as_ptr());
    }

    #[test]
    fn what_is_compressed_is_an_error() {
        let mut frame = framed(b"message").to_vec();
        frame.extend_from_slice(&[1, 0, 0, 0, 0]);
        let (found, error) = messages(vec![frame.into()]);
        assert_eq!(found, [&b"message"[..]]);
        assert_eq!(error.expect("an error").code(), tonic::Code::Internal);
    }
}
