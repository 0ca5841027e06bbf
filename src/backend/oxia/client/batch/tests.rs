use super::*;
use leaseway_proto::oxia::{DeleteResponse, PutResponse};

fn request(batch: WriteBatch) -> Result<WriteRequest, Kind> {
    batch.into_request(3, "ks").map(|(request, _)| request).map_err(|error| error.kind)
}

#[test]
fn an_append_has_one_step_a_partition_key_and_no_condition() {
    let mut batch = WriteBatch::new();
    batch.append("ks/log", "a");
    batch.put("ks/x", "b", Expect::Absent);
    let request = request(batch).expect("a request");
    assert_eq!(request.shard, Some(3));
    let (append, put) = (&request.puts[0], &request.puts[1]);
    assert_eq!(append.sequence_key_delta, [1]);
    assert_eq!(append.partition_key.as_deref(), Some("ks"));
    assert_eq!((append.expected_version_id, append.session_id), (None, None));
    assert!(put.sequence_key_delta.is_empty());
    assert_eq!(put.expected_version_id, Some(-1));
}

#[test]
fn refuses_what_is_too_large() {
    let mut most = WriteBatch::new();
    most.put("k", vec![0; RECORD_BYTES_MAX - 1], Expect::Anything);
    assert!(request(most.clone()).is_ok());
    let mut more = WriteBatch::new();
    more.put("k", vec![0; RECORD_BYTES_MAX], Expect::Anything);
    assert_eq!(request(more), Err(Kind::TooLarge));
    // Seventeen of about 1 MiB are above 16 MiB, fifteen are not.
    let value = Bytes::from(vec![0; 1 << 20]);
    let of = |count| {
        let mut batch = WriteBatch::new();
        (0..count).for_each(|_| batch.append("ks/log", value.clone()));
        request(batch).map(|_| ())
    };
    assert_eq!((of(15), of(17)), (Ok(()), Err(Kind::TooLarge)));
}

#[test]
fn refuses_too_many_and_none() {
    let of = |count| {
        let mut batch = WriteBatch::new();
        (0..count).for_each(|_| batch.delete("k", Expect::Anything));
        request(batch).map(|_| ())
    };
    assert_eq!(of(0), Err(Kind::Invalid));
    assert_eq!(of(OPERATIONS_MAX), Ok(()));
    assert_eq!(of(OPERATIONS_MAX + 1), Err(Kind::TooLarge));
}

#[test]
fn refuses_what_would_harm_the_shard() {
    let faults: [fn(&mut WriteBatch); 8] = [
        |batch| batch.put("__oxia/x", "", Expect::Anything),
        |batch| batch.put("ks/log-00000000000000005000", "", Expect::Anything),
        |batch| batch.put("ks/x", "", Expect::Version(-1)),
        |batch| batch.append("", ""),
        |batch| batch.append("ks/log-", ""),
        |batch| batch.delete("__oxia/session/0", Expect::Anything),
        |batch| batch.delete("ks/x", Expect::Absent),
        |batch| batch.delete_range(KeyRange::children_of("__oxia").expect("readable")),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let mut batch = WriteBatch::new();
        batch.put("ks/good", "", Expect::Anything);
        fault(&mut batch);
        batch.put("ks/good", "", Expect::Anything);
        assert_eq!(request(batch), Err(Kind::Invalid), "fault {number}");
    }
}

fn shape_of(build: fn(&mut WriteBatch)) -> Shape {
    let mut batch = WriteBatch::new();
    build(&mut batch);
    batch.into_request(0, "ks").expect("a request").1
}

fn put_response(status: Status, key: Option<&str>) -> PutResponse {
    PutResponse { status: status.into(), version: None, key: key.map(str::to_owned) }
}

#[test]
fn reads_each_outcome() {
    let shape = shape_of(|batch| {
        batch.append("ks/log", "");
        batch.put("ks/x", "", Expect::Absent);
        batch.delete("ks/y", Expect::Anything);
    });
    let response = WriteResponse {
        puts: vec![
            put_response(Status::Ok, Some("ks/log-00000000000000000007")),
            put_response(Status::UnexpectedVersionId, None),
        ],
        deletes: vec![DeleteResponse { status: Status::KeyNotFound.into() }],
        delete_ranges: vec![],
    };
    let results = shape.results(Epoch(4), response).expect("results");
    assert_eq!(results.epoch, Epoch(4));
    assert_eq!(results.puts[0].map(|written| written.sequence), Ok(7));
    assert_eq!(results.puts[1], Err(Refusal::Version));
    assert_eq!(results.deletes, [Err(Refusal::NotFound)]);
}

#[test]
fn notices_a_foreign_answer() {
    let shape = || shape_of(|batch| batch.append("ks/log", ""));
    let answers = [
        vec![],
        vec![put_response(Status::Ok, None)],
        vec![put_response(Status::Ok, Some("ks/other-00000000000000000007"))],
        vec![PutResponse { status: 99, version: None, key: None }],
    ];
    for puts in answers {
        let response = WriteResponse { puts, ..WriteResponse::default() };
        let error = shape().results(Epoch(1), response.clone()).expect_err("a foreign answer");
        assert_eq!(error.kind, Kind::Protocol, "{response:?}");
    }
}
