"""What the tests of Patroni's etcd3 class share: servers, and DCS objects made as Patroni makes them."""

import base64
import itertools
import time

import pytest
from patroni.dcs import get_dcs
from subject_server import Server, free_port, subject

LOOP_WAIT = 1
# Of leases that are not there to end, and of those that are.
TTL = 60
SHORT_TTL = 5
RETRY_SECONDS = 4

_scopes = (f"scope{number}" for number in itertools.count())


def eventually(check, within=15):
    """Calls `check` until it returns something true, which is returned."""
    deadline = time.monotonic() + within
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {within} s"
        time.sleep(0.02)
    return found


def b64(text):
    return base64.b64encode(text.encode()).decode()


class Patronis:
    """Makes DCS objects, all of one Patroni cluster, from configurations as they are in Patroni's files."""

    def __init__(self):
        self.scope = next(_scopes)
        self.made = []

    def configuration(self, *endpoints, name="a", section=(), **more):
        return {"scope": self.scope, "namespace": "/service/", "name": name, "loop_wait": LOOP_WAIT, "ttl": TTL,
                "retry_timeout": RETRY_SECONDS, "etcd3": {"hosts": list(endpoints), **dict(section)}, **more}

    def __call__(self, *endpoints, **options):
        dcs = get_dcs(self.configuration(*endpoints, **options))
        self.made.append(dcs)
        return dcs

    def end(self, dcs):
        """As if its process had died: nobody watches for it, and nobody renews its lease."""
        cache = dcs._client._kv_cache
        if cache:
            cache._build_cache = _leave
            dcs._client._restart_watcher()

    def close(self):
        for dcs in self.made:
            self.end(dcs)


def _leave():
    raise SystemExit


@pytest.fixture
def patronis():
    made = Patronis()
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A server for tests that leave it as it is; each has a Patroni cluster of its own there."""
    with Server(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def serve(tmp_path):
    """Starts servers that end with the test."""
    servers = []

    def start(*flags, **options):
        server = Server(tmp_path / f"server{len(servers)}", flags, **options)
        servers.append(server)
        return server.__enter__()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def several(tmp_path):
    """Servers of the same data: members of one etcd, or gateways on one keyspace."""
    if subject() == "leaseway":
        pytest.skip("one server has its data for itself")
    servers = []
    peers = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
    members = ",".join(f"member{number}={peer}" for number, peer in enumerate(peers))
    for number, peer in enumerate(peers):
        flags = [f"--name=member{number}", f"--listen-peer-urls={peer}",
                 f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={members}"]
        if subject() == "oxia":
            flags = [f"--name=member{number}"]
        servers.append(Server(tmp_path / f"server{number}", flags, keyspace=tmp_path))
    for server in servers:
        server.prepare()
        server.spawn()
    try:
        for server in servers:
            assert server.await_ready(), server.log.read_text(errors="replace")[-3000:]
        yield servers
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def a(patronis, shared):
    return patronis(shared.endpoint, name="a")


@pytest.fixture
def b(patronis, shared):
    return patronis(shared.endpoint, name="b")
