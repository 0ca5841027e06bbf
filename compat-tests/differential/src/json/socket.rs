//! Streams in both directions: each request and each answer is a message on a websocket.

use bytes::Bytes;
use futures_util::SinkExt;
use prost_reflect::DynamicMessage;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::client::End;
use crate::schema::Method;

/// Where a stream is opened.
#[derive(Debug)]
pub struct Socket {
    /// The server's port.
    pub port: u16,
    /// Who asks.
    pub token: Option<String>,
    /// The path of the method.
    pub path: &'static str,
}

impl Socket {
    async fn open(&self) -> Result<WebSocketStream<TcpStream>, String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let address = format!("ws://127.0.0.1:{}{}", self.port, self.path);
        let mut request = address.into_client_request().map_err(|error| error.to_string())?;
        if let Some(token) = &self.token {
            let protocol = format!("Bearer, {token}");
            let protocol = protocol.parse().map_err(|_| format!("{token} is no token"))?;
            request.headers_mut().insert("sec-websocket-protocol", protocol);
        }
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let opened = client_async_with_config(request, stream, Some(config)).await;
        opened.map(|(socket, _)| socket).map_err(|error| error.to_string())
    }
}

/// Carries requests to the server and hands answers to `take`, until the server ends the stream. When
/// there are no more requests the socket stays open: it has no way to end one side alone.
pub async fn run(
    socket: Socket,
    method: &Method,
    mut requests: mpsc::UnboundedReceiver<Bytes>,
    mut take: impl FnMut(DynamicMessage),
) -> End {
    let mut socket = match socket.open().await {
        Ok(socket) => socket,
        Err(error) => return End::Failed(14, format!("websocket: {error}"), Bytes::new()),
    };
    let mut more = true;
    loop {
        tokio::select! {
            request = requests.recv(), if more => {
                let Some(body) = request else {
                    more = false;
                    continue;
                };
                let Ok(request) = DynamicMessage::decode(method.input.clone(), body) else {
                    return End::Unreadable("a request that is no message".into());
                };
                let text = String::from_utf8_lossy(&super::text_of(&request)).into_owned();
                if socket.send(Message::Text(text.into())).await.is_err() {
                    return End::Ok;
                }
            }
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => match super::line(text.as_str(), &method.output) {
                    Ok(message) => take(message),
                    Err(end) => return end,
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => return End::Unreadable("a binary message".into()),
                // etcd cuts the connection, the server under test says goodbye first.
                Some(Ok(Message::Close(_)) | Err(_)) | None => return End::Ok,
            },
        }
    }
}
