//! One HTTP request and its answer, on a connection of its own.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Raw;

/// Headers that say nothing about the answer.
const OF_TRANSPORT: [&str; 5] =
    ["connection", "content-length", "date", "trailer", "transfer-encoding"];

/// What came back.
#[derive(Debug)]
pub struct Exchanged {
    /// The HTTP status.
    pub status: u16,
    /// Name and value, in the order of names.
    headers: Vec<(String, String)>,
    /// All of the body.
    pub body: Bytes,
}

impl Exchanged {
    /// Status and headers on one line.
    pub fn head(&self) -> String {
        let headers = self.headers.iter().map(|(name, value)| format!(", {name}: {value}"));
        format!("{}{}", self.status, headers.collect::<String>())
    }
}

/// Sends `request`; fails if there is no whole answer.
pub async fn exchange(port: u16, token: Option<&str>, request: &Raw) -> Result<Exchanged, String> {
    let text = |error: &dyn std::error::Error| format!("HTTP: {error}");
    let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| text(&e))?;
    stream.set_nodelay(true).map_err(|e| text(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    let mut head = http::Request::builder()
        .method(request.verb.as_str())
        .uri(request.path.as_str())
        .header(HOST, format!("127.0.0.1:{port}"));
    if !request.content_type.is_empty() {
        head = head.header(CONTENT_TYPE, &request.content_type);
    }
    if let Some(token) = token {
        head = head.header(AUTHORIZATION, token);
    }
    let request = head.body(Full::new(request.body.clone())).map_err(|e| text(&e))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| text(&e))?.to_bytes();
        let headers = head.headers.iter();
        let headers = headers.filter(|(name, _)| !OF_TRANSPORT.contains(&name.as_str()));
        let mut headers: Vec<_> = headers
            .map(|(name, value)| {
                (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect();
        headers.sort();
        Ok(Exchanged { status: head.status.as_u16(), headers, body })
    };
    // The connection is driven as long as the answer is awaited.
    tokio::pin!(answer);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}
