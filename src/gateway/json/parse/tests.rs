use super::*;
use bytes::Bytes;
use leaseway_proto::{etcdserverpb as pb, mvccpb, schema};
use pb::compare::TargetUnion;
use pb::request_op::Request;
use prost::Message as _;

fn shape(name: &str) -> &'static Message {
    schema::find(&format!("etcdserverpb.{name}")).expect(name)
}

fn read<M: prost::Message + Default>(name: &str, text: &str) -> Result<M, String> {
    let bytes = parse(shape(name), text.as_bytes())?;
    Ok(M::decode(&bytes[..]).expect("the encoding of a message"))
}

fn range(text: &str) -> Result<pb::RangeRequest, String> {
    read("RangeRequest", text)
}

/// What is wrong with a comparison, alone in a transaction.
fn compare(text: &str) -> String {
    let text = format!("{{\"compare\":[\n{text}]}}");
    read::<pb::TxnRequest>("TxnRequest", &text).unwrap_err()
}

#[test]
fn fields_are_known_by_both_names_and_values_in_all_their_forms() {
    let want = pb::RangeRequest {
        key: "foo".into(),
        range_end: "\u{0}".into(),
        limit: 1 << 53,
        revision: -1,
        sort_order: 2,
        keys_only: true,
        min_mod_revision: i64::MAX,
        ..Default::default()
    };
    for text in [
        r#"{"key":"Zm9v","range_end":"AA==","limit":"9007199254740992","revision":-1,
            "sort_order":"DESCEND","keys_only":true,"min_mod_revision":"9223372036854775807"}"#,
        r#"{"key":"Zm9v","rangeEnd":"AA","limit":9007199254740992,"revision":"-1",
            "sortOrder":2,"keysOnly":true,"minModRevision":9223372036854775807}"#,
        r#" {"\u006bey":"Z\n\u006D9v","range_end":"AA==\r\n\r\n","limit":9.007199254740992e15,"revision":-10e-1,
            "sort_order":"DESCEND","keys_only":true,"min_mod_revision":9223372036854775807.000,
            "serializable":null,"unknown":{"a":[1,{"b":"\"]}"}]},"sort_target":"NO_SUCH"} "#,
    ] {
        assert_eq!(range(text).as_ref(), Ok(&want), "{text}");
    }
    assert_eq!(range("{}"), Ok(pb::RangeRequest::default()));
    // Its names are escaped by whoever escapes everything.
    assert_eq!(range(r#"{"key":"+\/8="}"#).unwrap().key, [0xfb, 0xff][..]);
    assert_eq!(range(r#"{"key":"-_8"}"#).unwrap().key, [0xfb, 0xff][..]);
}

#[test]
fn nested_messages_and_set_defaults_are_kept() {
    let text = r#"{"compare":[{"key":"YQ==","target":"VERSION","version":"0"}],
        "success":[{"requestPut":{"key":"YQ=="}},{"request_txn":{"success":[{}]}}],"failure":[]}"#;
    let want = pb::TxnRequest {
        compare: vec![pb::Compare {
            key: "a".into(),
            target_union: Some(TargetUnion::Version(0)),
            ..Default::default()
        }],
        success: vec![
            pb::RequestOp {
                request: Some(Request::RequestPut(pb::PutRequest {
                    key: "a".into(),
                    ..Default::default()
                })),
            },
            pb::RequestOp {
                request: Some(Request::RequestTxn(pb::TxnRequest {
                    success: vec![pb::RequestOp::default()],
                    ..Default::default()
                })),
            },
        ],
        failure: Vec::new(),
    };
    assert_eq!(read::<pb::TxnRequest>("TxnRequest", text), Ok(want));
    let watch = read::<pb::WatchRequest>(
        "WatchRequest",
        r#"{"create_request":{"filters":["NOPUT",1,"X"]}}"#,
    );
    let Some(pb::watch_request::RequestUnion::CreateRequest(create)) = watch.unwrap().request_union
    else {
        panic!("not a request to create a watcher");
    };
    assert_eq!(create.filters, [0, 1]);
}

#[test]
fn what_is_wrong_is_refused_with_its_place() {
    for (text, want) in [
        ("[]", "proto: syntax error (line 1:1): unexpected token ["),
        ("null", "proto: syntax error (line 1:1): unexpected token null"),
        ("12", "proto: syntax error (line 1:1): unexpected token 12"),
        (r#"{"key":1}"#, "proto: (line 1:8): invalid value for bytes field key: 1"),
        (r#"{"key":"?"}"#, "proto: (line 1:8): invalid value for bytes field key: \"?\""),
        (r#"{"key":"Zm9v="}"#, "proto: (line 1:8): invalid value for bytes field key: \"Zm9v=\""),
        (r#"{"key":"a-+a"}"#, "proto: (line 1:8): invalid value for bytes field key: \"a-+a\""),
        (r#"{"key":{}}"#, "proto: (line 1:8): invalid value for bytes field key: {"),
        (r#"{"limit":1.5}"#, "proto: (line 1:10): invalid value for int64 field limit: 1.5"),
        (
            r#"{"limit":9223372036854775808}"#,
            "proto: (line 1:10): invalid value for int64 field limit: 9223372036854775808",
        ),
        (r#"{"limit":1e400}"#, "proto: (line 1:10): invalid value for int64 field limit: 1e400"),
        (r#"{"limit":"NaN"}"#, "proto: (line 1:10): invalid value for int64 field limit: \"NaN\""),
        (r#"{"limit":" 1"}"#, "proto: (line 1:10): invalid value for int64 field limit: \" 1\""),
        (r#"{"limit":""}"#, "proto: (line 1:10): invalid value for int64 field limit: \"\""),
        (r#"{"limit":true}"#, "proto: (line 1:10): invalid value for int64 field limit: true"),
        (
            "{\n\"keys_only\":\"true\"}",
            "proto: (line 2:13): invalid value for bool field keysOnly: \"true\"",
        ),
        (r#"{"keys_only":1}"#, "proto: (line 1:14): invalid value for bool field keysOnly: 1"),
        (
            r#"{"sort_order":2147483648}"#,
            "proto: (line 1:15): invalid value for enum field sortOrder: 2147483648",
        ),
        (r#"{"key":"","key":null}"#, "proto: (line 1:11): duplicate field \"key\""),
        (r#"{"range_end":null,"rangeEnd":""}"#, "proto: (line 1:19): duplicate field \"rangeEnd\""),
        (r#"{"key":"\ud800"}"#, "proto: unexpected EOF"),
        ("{\"key\":\"\u{0}\"}", "proto: (line 1:8): invalid value for bytes field key: \"\u{0}\""),
        (
            r#"{"key":"\ud800abcdef"}"#,
            "proto: syntax error (line 1:8): invalid escape code \"abcdef\" in string",
        ),
    ] {
        assert_eq!(range(text).map_err(|error| error.replace('\u{a0}', " ")), Err(want.to_owned()));
    }
    let text = b"{\"key\":\"\xff\"}";
    let error = parse(shape("RangeRequest"), text).unwrap_err();
    assert_eq!(error, "proto: syntax error (line 1:8): invalid UTF-8 in string");
    for (text, want) in [
        (
            r#"{"version":"1","value":"YQ=="}"#,
            "proto: (line 2:16): error parsing \"value\", oneof etcdserverpb.Compare.target_union is already set",
        ),
        (r#"{"key":["YQ=="]}"#, "proto: (line 2:8): invalid value for bytes field key: ["),
    ] {
        assert_eq!(compare(text), want);
    }
    for (text, want) in [
        (r#"{"success":{}}"#, "proto: syntax error (line 1:12): unexpected token {"),
        (r#"{"success":[null]}"#, "proto: syntax error (line 1:13): unexpected token null"),
        (r#"{"success":[[]]}"#, "proto: syntax error (line 1:13): unexpected token ["),
    ] {
        assert_eq!(read::<pb::TxnRequest>("TxnRequest", text).unwrap_err(), want);
    }
    let unsigned = read::<pb::MemberRemoveRequest>("MemberRemoveRequest", r#"{"ID":-1}"#);
    let want = "proto: (line 1:7): invalid value for uint64 field ID: -1";
    assert_eq!(unsigned.unwrap_err(), want);
    let all =
        read::<pb::MemberRemoveRequest>("MemberRemoveRequest", r#"{"ID":"18446744073709551615"}"#);
    assert_eq!(all.unwrap().id, u64::MAX);
}

#[test]
fn nesting_is_bounded() {
    let nested =
        |depth: usize| r#"{"success":[{"request_txn":"#.repeat(depth) + "{}" + &"}]}".repeat(depth);
    assert!(read::<pb::TxnRequest>("TxnRequest", &nested(49)).is_ok());
    let error = parse(shape("TxnRequest"), nested(50).as_bytes()).unwrap_err();
    assert_eq!(error, "proto: exceeded max recursion depth");
    let unknown = format!("{{\"x\":{}{},\"key\":\"YQ==\"}}", "[".repeat(9_000), "]".repeat(9_000));
    assert_eq!(range(&unknown).unwrap().key, "a");
}

#[test]
fn what_is_printed_is_read_again() {
    let kv = mvccpb::KeyValue {
        key: Bytes::from((0..=255).collect::<Vec<u8>>()),
        lease: i64::MIN,
        version: i64::MAX,
        ..Default::default()
    };
    let answer = pb::RangeResponse {
        header: Some(pb::ResponseHeader { cluster_id: u64::MAX, ..Default::default() }),
        kvs: vec![kv; 3],
        more: true,
        count: -5,
    };
    let mut text = Vec::new();
    let printed = answer.encode_to_vec();
    super::super::print::print(shape("RangeResponse"), &printed, &mut text).expect("printed");
    assert_eq!(read("RangeResponse", std::str::from_utf8(&text).unwrap()), Ok(answer));
}

#[test]
fn no_text_of_a_few_bytes_panics() {
    const BYTES: &[u8] = b"{}[]\":,\\u0-.eEtn k\xff\xc3";
    let length = BYTES.len();
    for code in 0..length.pow(3) {
        let text: Vec<u8> = (0..3_u32).map(|at| BYTES[code / length.pow(at) % length]).collect();
        for text in [
            text.clone(),
            [b"{\"key\":", &text[..]].concat(),
            [b"{\"limit\":\"", &text[..]].concat(),
        ] {
            // Any answer is good.
            let _ = parse(shape("RangeRequest"), &text);
            let _ = super::super::scan::Scanner::default().next(&text, true);
        }
    }
}

#[test]
fn strings_that_nobody_asked_for_have_to_be_right_too() {
    let refused = |text: &[u8]| parse(shape("RangeRequest"), text).unwrap_err();
    let utf8 = "proto: syntax error (line 1:6): invalid UTF-8 in string";
    assert_eq!(refused(b"{\"x\":\"\xc3\"}"), utf8);
    assert_eq!(refused(b"{\"x\":{\"\xff\":1}}"), utf8.replace(":6", ":7"));
    let escape = r#"proto: syntax error (line 1:7): invalid escape code "\\ud83d" in string"#;
    assert_eq!(refused(br#"{"x":["\ud83d\ud83d"]}"#), escape);
}
