//! A database file from a running server.

use super::progress::Progress;
use super::remote::Remote;
use leaseway_proto::etcdserverpb::SnapshotRequest;
use leaseway_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use std::io::Write;
use std::time::Duration;

/// Longest time without a word of the server.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes of a message of the server's; etcd sends 32 KiB of the file in one.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Writes a snapshot to `out` as it is saved: the file, with its checksum behind. Returns the length of both.
///
/// # Errors
/// Why not, in one line; what was written then counts for nothing.
pub async fn fetch(
    remote: &Remote,
    out: &mut impl Write,
    progress: &mut Progress,
) -> Result<u64, String> {
    let endpoint = remote.endpoint();
    let client = MaintenanceClient::new(remote.channel());
    let mut client = client.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let stream = client.snapshot(remote.request(SnapshotRequest {})).await;
    let mut stream = stream.map_err(|status| remote.refused(&status))?.into_inner();
    let (mut received, mut context, mut tail) = (0_u64, Context::new(&SHA256), Vec::new());
    loop {
        let next = tokio::time::timeout(SILENCE, stream.message()).await;
        let next = next.map_err(|_| format!("{endpoint}: no word for {SILENCE:?}"))?;
        let Some(message) = next.map_err(|status| remote.refused(&status))? else { break };
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
