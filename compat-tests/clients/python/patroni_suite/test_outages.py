"""Servers that go, come back, stand still, lose their data, or are one of several."""

import time

import pytest
from conftest import RETRY_SECONDS, TTL, eventually
from patroni.dcs.etcd import StaleEtcdNode
from patroni.exceptions import DCSError
from subject_server import Server

MEMBER = {"state": "running"}


def attempt(function, *arguments):
    """What an operation returns, or that the server can't be reached."""
    try:
        return function(*arguments)
    except DCSError:
        return False


def reachable(*dcss):
    # A cluster without any key counts as false.
    return all(attempt(dcs.get_cluster) is not False for dcs in dcss)


def test_the_server_is_restarted(serve, patronis):
    server = serve()
    a, b = (patronis(server.endpoint, name=name, ttl=20) for name in "ab")
    assert a.attempt_to_acquire_leader() and a.touch_member(MEMBER)
    eventually(lambda: b.get_cluster().leader_name == "a" and b.get_cluster().members)
    lease = a._lease
    for position in (1, 2):
        server.stop()
        assert attempt(b.attempt_to_acquire_leader) is False
        assert server.resume()
        eventually(lambda: reachable(a, b), within=30)
        assert a.update_leader(a.get_cluster(), position)
        eventually(lambda: b.get_cluster().status.last_lsn == position)
        assert a._lease == lease and b.get_cluster().leader.session == lease


def test_the_server_is_away(serve, patronis):
    server = serve()
    a = patronis(server.endpoint)
    assert a.attempt_to_acquire_leader()
    cluster = a.get_cluster()
    server.stop()
    started = time.monotonic()
    with pytest.raises(DCSError):
        a.update_leader(cluster, 1)
    with pytest.raises(DCSError):
        a.attempt_to_acquire_leader()
    with pytest.raises(DCSError):
        a.get_cluster()
    assert a.touch_member(MEMBER) is False
    assert time.monotonic() - started < 6 * RETRY_SECONDS


def test_the_server_stands_still(serve, patronis):
    server = serve()
    a = patronis(server.endpoint, ttl=30, retry_timeout=3)
    assert a.attempt_to_acquire_leader()
    cluster = a.get_cluster()
    server.pause()
    started = time.monotonic()
    with pytest.raises(DCSError):
        a.update_leader(cluster, 1)
    assert time.monotonic() - started < 15
    server.go_on()
    eventually(lambda: reachable(a), within=30)
    assert a.update_leader(a.get_cluster(), 2)
    eventually(lambda: a.get_cluster().status.last_lsn == 2)


def test_patroni_starts_before_the_server(serve, patronis):
    server = serve()
    server.stop()
    server.spawn()
    assert patronis(server.endpoint).attempt_to_acquire_leader()
    assert server.await_ready()


def test_the_servers_data_is_lost(serve, patronis, tmp_path):
    server = serve("--initial-cluster-token=first")
    a = patronis(server.endpoint)
    assert a.attempt_to_acquire_leader() and a.touch_member(MEMBER) and a.get_cluster().leader
    before = a._client._cluster_id
    server.stop()
    empty = Server(tmp_path / "empty", ["--initial-cluster-token=second"])
    empty.prepare()
    empty.command = [*empty.command, f"--listen-client-urls={server.url}", f"--advertise-client-urls={server.url}"]
    try:
        assert empty.resume()
        eventually(lambda: reachable(a) and a.get_cluster().is_empty(), within=30)
        assert a._client._cluster_id != before
        assert a.attempt_to_acquire_leader() and a.touch_member(MEMBER)
        assert eventually(lambda: a.get_cluster().leader).session == a._lease
    finally:
        empty.stop()


def test_a_server_of_an_earlier_term_is_refused(patronis, shared):
    a = patronis(shared.endpoint, retry_timeout=3)
    a.get_cluster()
    client = a._client
    cluster, term = client._cluster_id, client._raft_term
    assert cluster and term > 0
    client._check_cluster_raft_term(cluster, term + 1)
    with pytest.raises(StaleEtcdNode):
        client._check_cluster_raft_term(cluster, term)
    with pytest.raises(DCSError):
        a.attempt_to_acquire_leader()
    with pytest.raises(DCSError):
        a.get_cluster()
    client._raft_term = term
    eventually(lambda: reachable(a))
    assert a.take_leader()


def test_every_answer_has_the_cluster_and_its_term(a):
    client = a._client
    lease = client.lease_grant(TTL)
    ask = {"request_range": {"key": "eA=="}}
    answers = [client.range("/x"), client.put("/x", "1"), client.txn({"key": "eA==", "target": "VERSION"}, ask, ask),
               client.deleterange("/x"), client.call_rpc("/lease/timetolive", {"ID": lease}),
               client.call_rpc("/lease/revoke", {"ID": lease}), client.call_rpc("/cluster/member/list", {})]
    known = {(answer["header"]["cluster_id"], answer["header"]["raft_term"]) for answer in answers}
    assert known == {(client._cluster_id, str(client._raft_term))}


def test_one_of_several_servers_ends(several, patronis):
    a = patronis(several[0].endpoint, name="a", ttl=30, retry_timeout=10)
    b = patronis(*(server.endpoint for server in several), name="b", ttl=30, retry_timeout=10)
    urls = {server.url for server in several}
    for dcs in (a, b):
        eventually(lambda: dcs._client._refresh_machines_cache() is not None and set(dcs._client.machines_cache) == urls)
    assert a.attempt_to_acquire_leader() and a.touch_member(MEMBER)
    eventually(lambda: b.get_cluster().leader_name == "a")
    lease = a._lease
    for position, ended in enumerate([*several, several[0]], 1):
        # The one that both talk to, or else any.
        ended = next((server for server in several if server.url == a._client._base_uri), ended)
        ended.stop()
        assert eventually(lambda: attempt(a.update_leader, attempt(a.get_cluster) or b.cluster, position), within=40)
        eventually(lambda: reachable(b) and b.get_cluster().status.last_lsn == position, within=40)
        assert a._client._base_uri != ended.url
        assert b.get_cluster().leader.session == lease == a._lease
        assert ended.resume()


def test_several_servers_tell_the_same(several, patronis):
    each = [patronis(server.endpoint, name=f"node{number}", section={"use_proxies": True})
            for number, server in enumerate(several)]
    for dcs, server in zip(each, several):
        dcs._client._use_proxies = True
        dcs._client._machines_cache = [server.url]
        dcs._client.set_base_uri(server.url)
    won = [dcs for dcs in each if dcs.attempt_to_acquire_leader()]
    assert len(won) == 1
    for dcs in each:
        assert dcs.touch_member(MEMBER)
    for dcs in each:
        cluster = eventually(lambda: len((found := dcs.get_cluster()).members) == len(each) and found)
        assert cluster.leader_name == won[0]._name and cluster.leader.session == won[0]._lease
    assert len({(dcs._client._cluster_id, dcs._client._raft_term) for dcs in each}) == 1
    first, *rest = each
    for number in range(20):
        assert first.set_config_value(f'{{"ttl":{number}}}')
        version = eventually(lambda: (c := rest[0].get_cluster().config) and c.data == {"ttl": number} and c).version
        assert rest[-1].set_config_value(f'{{"ttl":{-number - 1}}}', version)
        assert first.set_config_value('{"ttl":1000}', version) is False
        eventually(lambda: first.get_cluster().config.data == {"ttl": -number - 1})
