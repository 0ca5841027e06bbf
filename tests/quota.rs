//! What is refused beyond the quota, and before what else is wrong with it.

mod support;

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use support::client::{Client, op, put};
use support::{Server, real_etcd};
use tonic::{Code, Status};

/// Less than a single put costs, and than any store takes.
const QUOTA: &[&str] = &["--quota-backend-bytes=16"];

async fn quota_comes_first(server: &Server) {
    let client = Client::connect(server.port).await;
    let list = pb::AlarmRequest { action: 0, ..pb::AlarmRequest::default() };
    let alarms = async || {
        client.maintenance.clone().alarm(list).await.expect("an answer").into_inner().alarms
    };
    let no_space = |what: &str, error: Status| {
        let told = (error.code(), error.message());
        let wanted = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!(told, wanted, "{what}");
    };
    assert_eq!(alarms().await, []);
    let ranges = |key: &'static str| {
        let range = pb::RangeRequest { key: key.into(), ..pb::RangeRequest::default() };
        let success = vec![op(Request::RequestRange(range))];
        pb::TxnRequest { success, ..pb::TxnRequest::default() }
    };
    let error = client.txn(ranges("")).await.expect_err("no key");
    assert_eq!(error.message(), "etcdserver: key is not provided", "it stores nothing");
    client.txn(ranges("k")).await.expect("an answer");

    no_space("no key", client.put("", "v", 0).await.expect_err("no key"));
    assert_eq!(alarms().await.len(), 1, "it is raised by what could not be done anyway");
    no_space("a large value", client.put("k", vec![0; 1_600_000], 0).await.expect_err("large"));
    for (what, puts) in [("no key", vec![""]), ("a key twice", vec!["k", "k"])] {
        let success = puts.into_iter().map(|key| op(Request::RequestPut(put(key, "v", 0))));
        let request = pb::TxnRequest { success: success.collect(), ..pb::TxnRequest::default() };
        no_space(what, client.txn(request).await.expect_err(what));
    }
    no_space("a long lease", client.grant(1, i64::MAX).await.expect_err("too long"));
}

#[tokio::test]
async fn the_quota_comes_before_the_checks_of_a_request_as_in_a_real_etcd() {
    quota_comes_first(&Server::start(QUOTA)).await;
    let Some(etcd) = real_etcd() else {
        println!("the real etcd has not been built here");
        return;
    };
    quota_comes_first(&Server::start_etcd(&etcd, QUOTA)).await;
}
