use super::*;
use leaseway_proto::{etcdserverpb as pb, mvccpb, schema};
use serde_json::{Value, json};

fn printed(name: &str, message: &impl prost::Message) -> Value {
    let mut text = Vec::new();
    let shape = schema::find(&format!("etcdserverpb.{name}")).expect(name);
    print(shape, &message.encode_to_vec(), &mut text).expect("printed");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn defaults_are_left_out_and_integers_are_strings() {
    assert_eq!(printed("RangeResponse", &pb::RangeResponse::default()), json!({}));
    let answer = pb::RangeResponse {
        header: Some(pb::ResponseHeader {
            cluster_id: u64::MAX,
            member_id: 0,
            revision: -3,
            raft_term: 2,
        }),
        kvs: vec![
            mvccpb::KeyValue { key: "\u{0}".into(), lease: i64::MAX, ..Default::default() },
            mvccpb::KeyValue::default(),
        ],
        more: true,
        count: 2,
    };
    let want = json!({
        "header": { "cluster_id": "18446744073709551615", "revision": "-3", "raft_term": "2" },
        "kvs": [{ "key": "AA==", "lease": "9223372036854775807" }, {}],
        "more": true,
        "count": "2",
    });
    assert_eq!(printed("RangeResponse", &answer), want);
}

#[test]
fn set_members_of_groups_are_printed_even_if_empty() {
    let answer = pb::TxnResponse {
        responses: vec![pb::ResponseOp {
            response: Some(pb::response_op::Response::ResponseRange(pb::RangeResponse::default())),
        }],
        ..Default::default()
    };
    assert_eq!(printed("TxnResponse", &answer), json!({ "responses": [{ "response_range": {} }] }));
}

#[test]
fn enum_values_have_names_or_numbers() {
    let alarms = |alarm| pb::AlarmResponse {
        alarms: vec![pb::AlarmMember { member_id: 1, alarm }],
        header: None,
    };
    let want = |alarm: Value| json!({ "alarms": [{ "memberID": "1", "alarm": alarm }] });
    assert_eq!(printed("AlarmResponse", &alarms(1)), want(json!("NOSPACE")));
    assert_eq!(printed("AlarmResponse", &alarms(77)), want(json!(77)));
    assert_eq!(printed("AlarmResponse", &alarms(-1)), want(json!(-1)));
}

#[test]
fn the_upper_half_of_short_numbers_does_not_count() {
    let shape = schema::find("etcdserverpb.RangeRequest").expect("a message");
    // The order of sorting, field 5, as 2^63 and as 2^63 + 1.
    for (low, want) in [(0x80, json!({})), (0x81, json!({ "sort_order": "ASCEND" }))] {
        let bytes = [0x28, low, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        let mut text = Vec::new();
        print(shape, &bytes, &mut text).expect("printed");
        assert_eq!(serde_json::from_slice::<Value>(&text).expect("JSON"), want);
    }
}

#[test]
fn texts_are_escaped() {
    let status = pb::StatusResponse { version: "a\"\\\n\u{1}é".into(), ..Default::default() };
    assert_eq!(printed("StatusResponse", &status), json!({ "version": "a\"\\\n\u{1}é" }));
}

#[test]
fn what_is_no_message_is_an_error() {
    let shape = schema::find("etcdserverpb.RangeResponse").expect("shape");
    for bytes in [&[0x0a, 5, 1][..], &[0x0a], &[0xff], &[0x20], &[0x0b], &[0x08, 1], &[0x22, 1, 0]]
    {
        assert_eq!(print(shape, bytes, &mut Vec::new()), Err(Malformed), "{bytes:?}");
    }
    // Unknown fields are left out.
    assert_eq!(print(shape, &[0x78, 1], &mut Vec::new()), Ok(()));
}
