"""What of the clients' tests is not run, and what fails against the real etcd: the same must hold for every subject."""

SERVER_FLAGS = {
    "etcd3": [],
    "aetcd": [],
    "etcd3gw": [],
    "tooz": [],
    "patroni": [],
    "node": [],
    "java": [],
    # What the tests say that they need.
    "rust": ["--auth-token-ttl=2", "--max-request-bytes=10240"],
}

_QUORUM = "stops servers that it finds by name"

# Not run, with the reason.
SKIPPED = {
    "etcd3": {
        "tests/test_etcd3.py::TestEtcd3::test_get_key_serializable": _QUORUM,
        "tests/test_etcd3.py::TestEtcd3::test_get_prefix_serializable": _QUORUM,
    },
    "aetcd": {},
    "etcd3gw": {},
    "tooz": {},
    "patroni": {},
    "node": {},
    "java": {},
    "rust": {
        "test_cluster": "needs a cluster whose fourth member is started by hand",
    },
}

# Fails, with the reason.
FAILING = {
    "etcd3": {
        "tests.test_etcd3.TestEtcd3::test_member_list": "expects three members",
        "tests.test_etcd3.TestEtcd3::test_snapshot": "`etcdctl snapshot status` has moved to etcdutl",
        "tests.test_etcd3.TestClient::test_user_pwd_auth": "replaces a module that is not there",
    },
    "aetcd": {
        "tests.integration.test_maintenance::test_snapshot": "`etcdctl snapshot status` has moved to etcdutl",
    },
    "etcd3gw": {},
    "tooz": {},
    "patroni": {},
    "node": {},
    "java": {},
    "rust": {},
}

# Clients that are not run against a subject unless they are asked for by name, with the reason.
LEFT_OUT = {"etcd": {}, "leaseway": {}, "oxia": {"etcd3": "waits for minutes, and aetcd asks for the same"}}

# So many tests must have passed: a run that finds none is not a good one.
AT_LEAST = {"etcd3": 77, "aetcd": 90, "etcd3gw": 39, "tooz": 70, "patroni": 58, "node": 15, "java": 12, "rust": 28}
