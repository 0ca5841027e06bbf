"""Each operation of Patroni's DCS interface, by two Patronis of one cluster."""

import datetime
import json
import threading
import time

from conftest import SHORT_TTL, TTL, b64, eventually

API = "http://127.0.0.1:8008/patroni"
MEMBER = {"conn_url": "postgres://127.0.0.1:5432/postgres", "api_url": API, "state": "running", "role": "replica",
          "version": "4.1.5", "xlog_location": 1234, "timeline": 1}


def revision(dcs):
    return int(dcs._client.range("/nothing", serializable=False)["header"]["revision"])


def raw(dcs, path):
    """The key as the server has it, whatever the cache says."""
    found = dcs._client.range(path, serializable=False).get("kvs", [])
    return found[0] if found else None


def in_a_moment(function, *arguments):
    timer = threading.Timer(0.5, function, arguments)
    timer.start()
    return timer


def test_the_servers_addresses_are_taken_from_the_member_list(shared, a):
    assert a._client._cluster_version == (3, 7, 0)
    assert a._client.version_prefix == "/v3"
    assert a._client.machines_cache == [shared.url]


def test_an_empty_cluster(a):
    cluster = a.get_cluster()
    assert cluster.is_empty() and cluster.is_unlocked() and not cluster.members
    assert a.cluster is cluster and a.last_seen > 0


def test_one_initializes(a, b):
    assert a.initialize(create_new=True)
    assert not b.initialize(create_new=True)
    assert a.initialize(create_new=False, sysid="7123456789012345678")
    assert a.get_cluster().initialize == "7123456789012345678"
    eventually(lambda: b.get_cluster().initialize == "7123456789012345678")


def test_initialization_is_cancelled(a, b):
    assert a.initialize(create_new=True)
    assert a.cancel_initialization()
    assert a.get_cluster().initialize is None
    assert b.initialize(create_new=True)


def test_one_acquires_the_leader_lock(a, b):
    assert a.attempt_to_acquire_leader()
    assert not b.attempt_to_acquire_leader()
    leader = eventually(lambda: b.get_cluster().leader)
    assert leader.name == "a" and leader.session == a._lease
    assert raw(a, a.leader_path)["lease"] == a._lease


def test_many_race_for_the_leader_lock(patronis, shared):
    racers = [patronis(shared.endpoint, name=f"racer{number}") for number in range(6)]
    won = []
    start = threading.Barrier(len(racers))

    def race(dcs):
        start.wait(30)
        if dcs.acquire_leader_lock():
            won.append(dcs._name)

    threads = [threading.Thread(target=race, args=(dcs,)) for dcs in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 1
    for dcs in racers:
        eventually(lambda: dcs.get_cluster().leader_name == won[0])


def test_the_leader_goes_on_being_it(patronis, shared, b):
    a = patronis(shared.endpoint, ttl=SHORT_TTL)
    assert a.attempt_to_acquire_leader()
    eventually(lambda: b.get_cluster().leader_name == "a")
    until = time.monotonic() + 2 * SHORT_TTL
    lease = a._lease
    position = 100
    while time.monotonic() < until:
        position += 1
        assert a.update_leader(a.get_cluster(), position)
        assert b.get_cluster().is_unlocked() is False
        time.sleep(0.5)
    assert a._lease == lease and raw(a, a.leader_path)["lease"] == lease
    eventually(lambda: b.get_cluster().status.last_lsn == position)


def test_the_status_is_written_with_the_lock(a, b):
    assert a.attempt_to_acquire_leader() and a.touch_member(MEMBER)
    assert a.update_leader(a.get_cluster(), 5000, slots={"a": 4000, "extra": 4500}, failsafe={"a": API})
    cluster = eventually(lambda: (found := b.get_cluster()).status.last_lsn == 5000 and found.failsafe and found)
    assert cluster.status.slots == {"a": 4000, "extra": 4500}
    assert cluster.status.retain_slots == ["a"]
    assert cluster.failsafe == {"a": API} and b.failsafe == {"a": API}
    written = revision(a)
    a.write_status({"optime": 5000, "slots": {"a": 4000, "extra": 4500}})
    a.write_failsafe({"a": API})
    assert revision(a) == written, "what is there already is not written again"


def test_old_members_get_the_position_as_well(a):
    assert a.touch_member({**MEMBER, "version": "2.0.0"})
    a.get_cluster()
    a.write_leader_optime(777)
    assert raw(a, a.leader_optime_path)["value"] == b64("777")


def test_the_leader_moves_its_lock_to_another_lease(a):
    assert a.attempt_to_acquire_leader()
    first, a._lease = a._lease, None
    assert a.update_leader(a.get_cluster(), 1)
    assert a._lease != first
    assert raw(a, a.leader_path)["lease"] == a._lease
    a._client.call_rpc("/lease/revoke", {"ID": first})
    assert raw(a, a.leader_path), "the lock is not the old lease's any more"


def test_the_leader_makes_its_lock_again(a):
    assert a.attempt_to_acquire_leader()
    cluster = a.get_cluster()
    # With the lease, the lock goes.
    a._client.call_rpc("/lease/revoke", {"ID": a._lease})
    assert raw(a, a.leader_path) is None
    assert a.update_leader(cluster, 1)
    assert raw(a, a.leader_path)["lease"] == a._lease != cluster.leader.session


def test_who_lost_the_lock_is_told(a, b):
    assert a.attempt_to_acquire_leader()
    cluster = a.get_cluster()
    a._client.call_rpc("/lease/revoke", {"ID": a._lease})
    assert b.attempt_to_acquire_leader()
    assert a.update_leader(cluster, 1) is False
    assert raw(a, a.leader_path)["value"] == b64("b")


def test_the_first_leader_takes_the_lock(a, b):
    assert a.attempt_to_acquire_leader()
    assert b.take_leader()
    assert eventually(lambda: (leader := a.get_cluster().leader) and leader.name == "b" and leader).session == b._lease


def test_only_the_leader_gives_the_lock_up(a, b):
    assert a.attempt_to_acquire_leader()
    leader = eventually(lambda: b.get_cluster().leader)
    assert b.delete_leader(leader) is False
    assert a.delete_leader(a.get_cluster().leader, last_lsn=900) is True
    assert a.get_cluster().is_unlocked()
    cluster = eventually(lambda: (found := b.get_cluster()).is_unlocked() and found)
    assert cluster.status.last_lsn == 900
    assert b.attempt_to_acquire_leader()


def test_a_dead_leaders_lock_ends_with_its_lease(patronis, shared, b):
    a = patronis(shared.endpoint, ttl=SHORT_TTL)
    assert a.attempt_to_acquire_leader() and a.touch_member(MEMBER)
    assert b.touch_member(MEMBER)
    eventually(lambda: (found := b.get_cluster()).leader and len(found.members) == 2)
    assert a.update_leader(a.get_cluster(), 1)
    eventually(lambda: b.get_cluster().status.last_lsn == 1)
    renewed = time.monotonic()
    patronis.end(a)
    b.event.clear()
    woken = False
    while not woken and time.monotonic() - renewed < 4 * SHORT_TTL:
        woken = b.watch(None, 1)
    cluster = eventually(lambda: (found := b.get_cluster()).is_unlocked() and found, within=10)
    assert woken and time.monotonic() - renewed > SHORT_TTL - 1
    eventually(lambda: [member.name for member in b.get_cluster().members] == ["b"], within=10)
    assert cluster.status.last_lsn == 1, "what has no lease stays"
    assert b.attempt_to_acquire_leader()


def test_members(a, b):
    assert a.touch_member(MEMBER) and b.touch_member({**MEMBER, "state": "starting", "tags": {"nofailover": True}})
    cluster = eventually(lambda: len((found := a.get_cluster()).members) == 2 and found)
    first, second = cluster.get_member("a"), cluster.get_member("b")
    assert (first.conn_url, first.api_url, first.state, first.lsn) == (MEMBER["conn_url"], API, "running", 1234)
    assert (second.state, second.nofailover, second.session) == ("starting", True, b._lease)
    written = revision(a)
    assert a.touch_member(MEMBER)
    assert revision(a) == written, "what is there already is not written again"
    assert a.touch_member({**MEMBER, "xlog_location": 1235})
    assert revision(a) == written + 1


def test_a_members_key_with_any_text(a, b):
    data = {**MEMBER, "tags": {"place": "Zürich \u2603 \U0001f600 <&> \x7f\t\"\\", "nofailover": False}}
    assert a.touch_member(data)
    assert eventually(lambda: b.get_cluster().get_member("a")).data == data


def test_a_member_whose_lease_is_gone_gets_another(a):
    assert a.touch_member(MEMBER)
    lost = a._lease
    a._client.call_rpc("/lease/revoke", {"ID": lost})
    eventually(lambda: not a.get_cluster().members)
    assert a.touch_member(MEMBER) is False
    assert a.touch_member(MEMBER) is True
    assert a._lease != lost
    assert eventually(lambda: a.get_cluster().get_member("a")).session == a._lease


def test_a_leader_whose_lease_is_gone_gets_another(a):
    lost = a._lease
    a._client.call_rpc("/lease/revoke", {"ID": lost})
    assert a.attempt_to_acquire_leader()
    assert a._lease != lost and raw(a, a.leader_path)["lease"] == a._lease


def test_a_renewal_tells_that_the_lease_is_gone(a):
    assert a._client.lease_keepalive(a._lease) == str(TTL)
    lost = a._lease
    a._client.call_rpc("/lease/revoke", {"ID": lost})
    assert not a._client.lease_keepalive(lost)
    assert a._do_refresh_lease(force=True) is True
    assert a._lease != lost


def test_another_time_to_live(a):
    assert a.touch_member(MEMBER)
    first = a._lease
    a.reload_config({"loop_wait": 2, "ttl": 20, "retry_timeout": 3})
    assert (a.ttl, a.loop_wait, a._client.read_timeout) == (20, 2, 3)
    assert a.watch(None, 5) is True, "the loop runs again at once"
    assert a.touch_member(MEMBER)
    assert a._lease != first
    asked = a._client.call_rpc("/lease/timetolive", {"ID": a._lease, "keys": True})
    assert asked["grantedTTL"] == "20" and 15 <= int(asked["TTL"]) <= 20
    assert asked["keys"] == [b64(a.member_path)]


def test_the_configuration_and_its_version(a, b):
    assert a.set_config_value('{"ttl":30}')
    first = eventually(lambda: b.get_cluster().config)
    assert first.data == {"ttl": 30}
    assert a.set_config_value('{"ttl":31}', first.version)
    assert b.set_config_value('{"ttl":32}', first.version) is False
    second = eventually(lambda: (found := b.get_cluster().config) and found.data == {"ttl": 31} and found)
    assert int(second.version) > int(first.version)
    assert b.set_config_value('{"ttl":33}', second.version)
    eventually(lambda: a.get_cluster().config.data == {"ttl": 33})


def test_a_failover_is_asked_for(a, b):
    assert a.manual_failover("a", "b")
    failover = eventually(lambda: b.get_cluster().failover)
    assert (failover.leader, failover.candidate, failover.scheduled_at) == ("a", "b", None)
    when = datetime.datetime(2031, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    assert b.manual_failover("a", None, when, failover.version)
    assert a.manual_failover(None, "c", version=failover.version) is False
    scheduled = eventually(lambda: (found := a.get_cluster().failover) and found.scheduled_at and found)
    assert (scheduled.leader, scheduled.candidate, scheduled.scheduled_at) == ("a", None, when)
    assert a.set_failover_value("", scheduled.version)
    eventually(lambda: (found := b.get_cluster().failover) is not None and len(found) == 0)


def test_the_synchronous_state_and_its_version(a, b):
    state = a.write_sync_state("a", ["c", "b"], 1)
    seen = eventually(lambda: not (found := b.get_cluster().sync).is_empty and found)
    assert (seen.version, seen.leader, seen.members, seen.quorum) == (state.version, "a", ["a", "b", "c"], 1)
    newer = b.write_sync_state("a", ["b"], 0, version=seen.version)
    assert int(newer.version) == int(seen.version) + 1
    assert a.write_sync_state("a", ["c"], 0, version=seen.version) is None
    assert not a.delete_sync_state(version=seen.version)
    eventually(lambda: a.get_cluster().sync.version == newer.version)
    assert a.delete_sync_state(version=newer.version)
    eventually(lambda: b.get_cluster().sync.is_empty)


def test_the_history(a, b):
    lines = [[number, number * 1000, "no recovery target specified", "2030-01-01T00:00:00+00:00", "a"]
             for number in range(1, 300)]
    assert a.set_history_value(json.dumps(lines))
    history = eventually(lambda: b.get_cluster().history)
    assert history.lines == lines


def test_a_cluster_is_deleted(patronis, shared, a):
    other = patronis(shared.endpoint, scope=f"{patronis.scope}0")
    for dcs in (a, other):
        assert dcs.initialize(sysid="1") and dcs.touch_member(MEMBER) and dcs.attempt_to_acquire_leader()
        assert dcs.set_config_value("{}")
    assert a.delete_cluster()
    eventually(lambda: a.get_cluster().is_empty())
    assert other.get_cluster().leader_name == "a" and raw(other, other.config_path)


def woken_by(dcs, change):
    """Whether a change from elsewhere ends a watch, and well before its time."""
    dcs.event.clear()
    timer = in_a_moment(change)
    started = time.monotonic()
    woken = dcs.watch(None, 20)
    timer.join()
    return woken and time.monotonic() - started < 10


def test_watches_are_woken_by_what_matters(a, b):
    assert woken_by(b, a.attempt_to_acquire_leader)
    eventually(lambda: b.get_cluster().leader_name == "a")
    assert woken_by(b, lambda: a.write_status({"optime": 1}))
    assert woken_by(b, lambda: a.write_status({"optime": 2}))
    assert a.set_config_value("{}")
    eventually(lambda: b.get_cluster().config)
    assert woken_by(b, lambda: a.set_config_value('{"pause":true}'))
    assert woken_by(b, lambda: a.delete_leader(a.get_cluster().leader))


def test_watches_are_not_woken_by_the_rest(a, b):
    eventually(lambda: b.get_cluster() is not None)
    b.event.clear()
    timer = in_a_moment(lambda: a.touch_member(MEMBER) and a.set_history_value("[]"))
    assert b.watch(None, 2) is False
    timer.join()
    cluster = eventually(lambda: (found := b.get_cluster()).history and found)
    assert cluster.get_member("a"), "but they are seen"


def test_many_changes_are_seen_in_order(a, b):
    positions = []
    seen = threading.Event()
    handle = b._client._kv_cache._process_event

    def note(event):
        if event["kv"]["key"] == b64(a.status_path):
            positions.append(event["kv"]["value"])
            if event["kv"]["value"] == b64("100"):
                seen.set()
        handle(event)

    b.get_cluster()
    b._client._kv_cache._process_event = note
    for position in range(1, 101):
        assert a._write_status(str(position))
    assert seen.wait(30)
    assert positions == [b64(str(position)) for position in range(1, 101)]


def test_patronictl_reads_without_a_watch(patronis, shared, a):
    assert a.touch_member(MEMBER) and a.attempt_to_acquire_leader()
    ctl = patronis(shared.endpoint, name="ctl", patronictl=True)
    assert ctl._client._kv_cache is None and ctl._lease is None
    cluster = ctl.get_cluster()
    assert cluster.leader_name == "a" and cluster.get_member("a").data == MEMBER
    assert a.manual_failover(None, "b") and ctl.get_cluster().failover.candidate == "b"


def test_citus_groups(patronis, shared):
    groups = {number: patronis(shared.endpoint, name=f"group{number}", citus={"group": number, "database": "citus"})
              for number in range(3)}
    for dcs in groups.values():
        assert dcs.initialize(sysid=dcs._name) and dcs.attempt_to_acquire_leader() and dcs.touch_member(MEMBER)

    def whole():
        cluster = groups[0].get_cluster()
        return cluster if len(cluster.workers) == 2 and all(w.members for w in cluster.workers.values()) else None

    cluster = eventually(whole)
    assert (cluster.initialize, cluster.leader_name) == ("group0", "group0")
    assert [(number, worker.leader_name) for number, worker in sorted(cluster.workers.items())] == \
        [(1, "group1"), (2, "group2")]
    assert groups[1].get_mpp_coordinator().leader_name == "group0"
    assert groups[1].get_cluster().leader_name == "group1" and not groups[1].get_cluster().workers
