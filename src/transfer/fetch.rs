//! A database file from a running server: etcd, or Leaseway.

use super::progress::Progress;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use leaseway_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use std::io::Write;
use std::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Longest time without a word of the server.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);
/// Bytes of a message of the server's; etcd sends 32 KiB of the file in one.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Where from, and as whom.
pub struct Place<'a> {
    /// A URL.
    pub endpoint: &'a str,
    /// Name and password.
    pub user: Option<(&'a str, &'a str)>,
}

/// Writes a snapshot to `out` as it is saved: the file, with its checksum behind. Returns the length of both.
///
/// # Errors
/// Why not, in one line; what was written then counts for nothing.
pub async fn fetch(
    place: &Place<'_>,
    out: &mut impl Write,
    progress: &mut Progress,
) -> Result<u64, String> {
    let endpoint = place.endpoint;
    let refused = |status: Status| format!("{endpoint}: {}", status.message());
    let channel = connect(endpoint).await?;
    let mut request = Request::new(pb::SnapshotRequest {});
    if let Some((name, password)) = place.user {
        let ask = pb::AuthenticateRequest { name: name.into(), password: password.into() };
        let answer = AuthClient::new(channel.clone()).authenticate(ask).await.map_err(refused)?;
        let token = MetadataValue::try_from(answer.into_inner().token);
        let token = token.map_err(|_| format!("{endpoint}: the token is none"))?;
        request.metadata_mut().insert("token", token);
    }
    let mut client = MaintenanceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut stream = client.snapshot(request).await.map_err(refused)?.into_inner();
    let (mut received, mut context, mut tail) = (0_u64, Context::new(&SHA256), Vec::new());
    loop {
        let next = tokio::time::timeout(SILENCE, stream.message()).await;
        let next = next.map_err(|_| format!("{endpoint}: no word for {SILENCE:?}"))?;
        let Some(message) = next.map_err(refused)? else { break };
        if received == 0 {
            let total = message.remaining_bytes.saturating_add(message.blob.len() as u64);
            progress.begin("receiving", total);
        }
        received += message.blob.len() as u64;
        progress.reached(received);
        out.write_all(&message.blob).map_err(|error| format!("cannot write: {error}"))?;
        // The checksum comes last, and covers everything but itself.
        tail.extend_from_slice(&message.blob);
        let covered = tail.len().saturating_sub(SHA256_OUTPUT_LEN);
        context.update(&tail[..covered]);
        tail.drain(..covered);
    }
    progress.end();
    if context.finish().as_ref() != tail {
        return Err(format!("{endpoint}: the snapshot does not fit its checksum; try again"));
    }
    Ok(received)
}

async fn connect(endpoint: &str) -> Result<Channel, String> {
    let url = if endpoint.contains("://") { endpoint.into() } else { format!("http://{endpoint}") };
    if !url.starts_with("http://") {
        return Err(format!(
            "{endpoint}: only http:// is spoken here; save a snapshot with etcdctl"
        ));
    }
    let parsed = Endpoint::from_shared(url).map_err(|error| format!("{endpoint}: {error}"))?;
    let connected = parsed.connect_timeout(CONNECT).connect().await;
    connected.map_err(|error| {
        let cause =
            std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
        format!("{endpoint}: cannot connect: {cause}")
    })
}
