//! Brings both servers to the state in which every sequence begins: no keys, no leases, no alarms,
//! and all history compacted away. Revisions go on counting; they are equal on both.

use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use prost::Message;
use prost_reflect::DynamicMessage;

use crate::client::{Answer, Client};
use crate::compare::Mismatch;
use crate::schema::Schema;
use crate::servers::Pair;

/// The revision at which the next sequence begins, or in what the two servers do not agree.
pub async fn reset(pair: &Pair) -> Result<i64, Mismatch> {
    let (reference, subject) =
        tokio::join!(reset_one(&pair.reference.client), reset_one(&pair.subject.client));
    match (reference, subject) {
        (Ok(reference), Ok(subject)) if reference == subject => Ok(reference),
        (reference, subject) => {
            let text = |r: Result<i64, String>| r.map_or_else(|e| e, |n| n.to_string());
            Err(Mismatch::new("reset", text(reference), text(subject)))
        }
    }
}

async fn reset_one(client: &Client) -> Result<i64, String> {
    let alarms = call(client, "Maintenance.Alarm", &pb::AlarmRequest::default()).await?;
    let alarms = pb::AlarmResponse::decode(alarms.as_slice()).map_err(|e| e.to_string())?;
    for alarm in alarms.alarms {
        let off = pb::AlarmRequest { action: 2, member_id: alarm.member_id, alarm: alarm.alarm };
        call(client, "Maintenance.Alarm", &off).await?;
    }
    let leases = call(client, "Lease.LeaseLeases", &pb::LeaseLeasesRequest {}).await?;
    let leases = pb::LeaseLeasesResponse::decode(leases.as_slice()).map_err(|e| e.to_string())?;
    for lease in leases.leases {
        // It may have run out meanwhile.
        let _ = call(client, "Lease.LeaseRevoke", &pb::LeaseRevokeRequest { id: lease.id }).await;
    }
    // The hash that etcd keeps of a compaction covers what came after the one before, so the first
    // of these two leaves the last sequence behind and the second makes that hash the same too.
    clear(client).await?;
    clear(client).await
}

/// Deletes everything in a revision of its own, and compacts up to it.
async fn clear(client: &Client) -> Result<i64, String> {
    let put = pb::PutRequest { key: "\0".into(), ..pb::PutRequest::default() };
    call(client, "KV.Put", &put).await?;
    let all = pb::DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), prev_kv: false };
    let deleted = call(client, "KV.DeleteRange", &all).await?;
    let deleted = pb::DeleteRangeResponse::decode(deleted.as_slice()).map_err(|e| e.to_string())?;
    let revision = deleted.header.map_or(0, |header| header.revision);
    call(client, "KV.Compact", &pb::CompactionRequest { revision, physical: true }).await?;
    Ok(revision)
}

async fn call(client: &Client, name: &str, request: &impl Message) -> Result<Vec<u8>, String> {
    let method = Schema::known(name);
    let body = Bytes::from(request.encode_to_vec());
    let answer: Answer = client.call(&method.path, body, &method.output).await;
    let message: Option<&DynamicMessage> = answer.message();
    message.map(Message::encode_to_vec).ok_or_else(|| format!("{name}: {:?}", answer.end))
}
