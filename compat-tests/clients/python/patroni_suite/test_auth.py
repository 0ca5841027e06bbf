"""Users, passwords and tokens, and the errors that Patroni tells apart by their codes and texts."""

import time

import pytest
from conftest import RETRY_SECONDS, TTL, b64, eventually
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from patroni.dcs import etcd3
from patroni.dcs.etcd3 import prefix_range_end
from patroni.exceptions import DCSError
from patroni.utils import iter_response_objects

PASSWORD = "correct horse"
LOGIN = {"username": "patroni", "password": PASSWORD}
ROOT = {"username": "root", "password": "root's"}
CHEAP = "--bcrypt-cost=4"
MEMBER = {"state": "running"}


def call(dcs, method, **fields):
    return dcs._client.call_rpc(method, fields)


def make_users(dcs, below="/service/", password=PASSWORD):
    """root, and a user for Patroni who may do everything below a prefix."""
    for user in ({"name": "root", "password": ROOT["password"]}, {"name": "patroni", "password": password}):
        call(dcs, "/auth/user/add", **user)
    end = prefix_range_end(below).decode()
    for role in ("root", "patroni"):
        call(dcs, "/auth/role/add", name=role)
        call(dcs, "/auth/user/grant", user=role, role=role)
    call(dcs, "/auth/role/grant", name="patroni", perm={"permType": "READWRITE", "key": b64(below), "range_end": b64(end)})


@pytest.fixture
def guard(serve, patronis):
    """Starts a server with authentication on, and returns it with root's client of it."""

    def start(*flags, **options):
        server = serve(CHEAP, *flags)
        make_users(ctl := patronis(server.endpoint, name="ctl", patronictl=True), **options)
        call(ctl, "/auth/enable")
        return server, patronis(server.endpoint, name="root", section=ROOT, patronictl=True)

    return start


def refused(error, function, *arguments, status, **options):
    """Holds a refusal to the very class, and to the HTTP status that comes with it."""
    with pytest.raises(etcd3.Etcd3ClientError) as refusal:
        function(*arguments, **options)
    found = refusal.value
    assert (type(found), found.code, found.error, found.status) == (error, error.code, error.error, status)


def other_refusal(code, text, status, function, *arguments, **options):
    """As `refused`, for errors that Patroni has no class for."""
    with pytest.raises(etcd3.Etcd3ClientError) as refusal:
        function(*arguments, **options)
    found = refusal.value
    assert (found.code, found.error, found.status) == (code, text, status)


def test_errors_without_authentication(a):
    client = a._client
    refused(etcd3.LeaseNotFound, client.put, "/x", "1", "123456", status=404)
    refused(etcd3.LeaseNotFound, client.put, "/x", "1", "123456", create_revision="0", status=404)
    refused(etcd3.LeaseNotFound, call, a, "/lease/revoke", ID="123456", status=404)
    refused(etcd3.AuthNotEnabled, call, a, "/auth/authenticate", name="a", password="b", status=400)
    other_refusal(3, "etcdserver: key is not provided", 400, call, a, "/kv/put", value=b64("1"))
    other_refusal(3, "etcdserver: request is too large", 400, client.put, "/x", "1" * 1_600_000)
    other_refusal(11, "etcdserver: mvcc: required revision is a future revision", 400, call, a, "/kv/range",
                  key=b64("/x"), revision="1000000000")
    other_refusal(12, "Method Not Allowed", 501, client.api_execute, "/v3/kv/range", "GET")


def test_what_is_too_large_is_a_failed_operation(a):
    assert a.set_history_value("x" * 1_600_000) is False
    assert a.set_history_value("[]") is True


def test_a_login_where_it_is_not_asked_for(patronis, shared):
    dcs = patronis(shared.endpoint, section=LOGIN)
    assert dcs._client._token is None
    assert dcs.attempt_to_acquire_leader() and dcs.get_cluster().leader_name == "a"


def test_a_wrong_password_ends_the_process(guard, patronis):
    server, _ = guard()
    for wrong in ({**LOGIN, "password": "wrong"}, {**LOGIN, "username": "nobody"}):
        with pytest.raises(SystemExit) as end:
            patronis(server.endpoint, section=wrong)
        assert end.value.code == 1


def test_errors_with_authentication(guard, patronis):
    server, root = guard()
    dcs = patronis(server.endpoint, section=LOGIN)
    client = dcs._client
    refused(etcd3.PermissionDenied, client.put, "/elsewhere", "1", status=403)
    refused(etcd3.PermissionDenied, client.range, "/elsewhere", status=403)
    refused(etcd3.PermissionDenied, call, dcs, "/auth/user/add", name="x", password="y", status=403)
    refused(etcd3.AuthFailed, call, root, "/auth/authenticate", name="patroni", password="wrong", status=400)
    refused(etcd3.AuthFailed, call, root, "/auth/authenticate", name="nobody", password="wrong", status=400)
    client._token = "no such token"
    refused(etcd3.InvalidAuthToken, call, dcs, "/kv/range", key=b64("/service/"), status=401)
    refused(etcd3.InvalidAuthToken, call, dcs, "/kv/put", key=b64("/service/"), status=401)
    refused(etcd3.InvalidAuthToken, call, dcs, "/lease/grant", TTL=TTL, status=401)
    client._token = None
    refused(etcd3.UserEmpty, call, dcs, "/kv/range", key=b64("/service/"), status=400)
    refused(etcd3.UserEmpty, call, dcs, "/kv/put", key=b64("/service/"), status=400)
    refused(etcd3.UserEmpty, call, dcs, "/lease/grant", TTL=TTL, status=400)
    assert client.range("/service/x")["header"], "it logs in by itself"
    assert client._token


def first_message(response):
    for message in iter_response_objects(response):
        return message
    return None


def test_watches_that_are_not_allowed(guard, patronis):
    server, _ = guard()
    dcs = patronis(server.endpoint, section=LOGIN)
    outside = first_message(dcs._client.watchprefix("/elsewhere"))["result"]
    assert outside["canceled"] is True and "permission denied" in outside["cancel_reason"]
    dcs._client._token = None
    nobody = first_message(dcs._client.watchprefix("/service/"))["result"]
    assert nobody["canceled"] is True and "user name is empty" in nobody["cancel_reason"]
    dcs._client._token = "no such token"
    stranger = first_message(dcs._client.watchprefix("/service/"))
    assert stranger["result"]["canceled"] is True and "invalid auth token" in stranger["result"]["cancel_reason"]


def test_the_whole_round_with_a_login(guard, patronis):
    server, _ = guard()
    a, b = (patronis(server.endpoint, name=name, section=LOGIN) for name in "ab")
    assert a._client._token and b._client._token
    assert a.initialize(sysid="1") and a.attempt_to_acquire_leader() and a.touch_member(MEMBER) and b.touch_member(MEMBER)
    cluster = eventually(lambda: len((found := b.get_cluster()).members) == 2 and found)
    assert cluster.leader_name == "a" and cluster.initialize == "1"
    assert a.update_leader(a.get_cluster(), 10)
    eventually(lambda: b.get_cluster().status.last_lsn == 10)
    assert a.delete_cluster() and eventually(lambda: b.get_cluster().is_empty())


def test_an_expired_token_is_replaced(guard, patronis):
    server, _ = guard("--auth-token-ttl=1")
    a = patronis(server.endpoint, section=LOGIN)
    assert a.attempt_to_acquire_leader()
    first = a._client._token
    # Its use prolongs it: it ends only where it lies unused.
    time.sleep(3.5)
    refused(etcd3.InvalidAuthToken, call, a, "/kv/range", key=b64("/service/"), status=401)
    assert a.update_leader(a.get_cluster(), 1)
    assert a._client._token != first
    eventually(lambda: a.get_cluster().status.last_lsn == 1)
    time.sleep(3.5)
    second = a._client._token
    assert a.touch_member(MEMBER) and a._client._token != second


def test_a_used_token_does_not_expire(guard, patronis):
    server, _ = guard("--auth-token-ttl=2")
    a = patronis(server.endpoint, section=LOGIN)
    assert a.attempt_to_acquire_leader()
    first = a._client._token
    until = time.monotonic() + 6
    while time.monotonic() < until:
        assert a.update_leader(a.get_cluster(), int(time.monotonic() * 1000))
        time.sleep(0.3)
    assert a._client._token == first


def test_signed_tokens(guard, patronis, tmp_path):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL,
                                          serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM,
                                                     serialization.PublicFormat.SubjectPublicKeyInfo))
    server, root = guard(f"--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=3s")
    a = patronis(server.endpoint, section=LOGIN)
    assert a.attempt_to_acquire_leader()
    first = a._client._token
    # Whatever changes users makes tokens of before too old.
    call(root, "/auth/role/add", name="another")
    refused(etcd3.AuthOldRevision, call, a, "/kv/range", key=b64("/service/"), status=400)
    assert a.update_leader(a.get_cluster(), 1)
    second = a._client._token
    assert second != first

    def expired():
        try:
            call(a, "/kv/range", key=b64("/service/"))
        except etcd3.InvalidAuthToken:
            return True
        return False

    eventually(expired)
    assert a.update_leader(a.get_cluster(), 2) and a._client._token != second


def test_authentication_is_turned_on_and_off_meanwhile(serve, patronis):
    server = serve(CHEAP)
    knows, ignores = patronis(server.endpoint, name="knows", section=LOGIN), patronis(server.endpoint, name="ignores")
    assert knows.touch_member(MEMBER) and ignores.touch_member(MEMBER) and knows._client._token is None
    make_users(knows)
    call(knows, "/auth/enable")
    assert knows.attempt_to_acquire_leader() and knows._client._token
    assert ignores.take_leader() is False
    assert ignores.touch_member({"state": "stopped"}) is False
    root = patronis(server.endpoint, name="root", section=ROOT, patronictl=True)
    call(root, "/auth/disable")
    assert eventually(lambda: ignores.get_cluster()).leader_name == "knows"
    ignores._client._reauthenticate = False
    assert ignores.touch_member({"state": "stopped"}) and knows.update_leader(knows.get_cluster(), 1)


def test_another_password_meanwhile(guard, patronis):
    server, root = guard()
    a = patronis(server.endpoint, section=LOGIN)
    assert a.attempt_to_acquire_leader()
    call(root, "/auth/user/changepw", name="patroni", password="another")
    refused(etcd3.InvalidAuthToken, call, a, "/kv/range", key=b64("/service/"), status=401)
    assert a.touch_member(MEMBER) is False
    a.reload_config({"loop_wait": 1, "ttl": TTL, "retry_timeout": RETRY_SECONDS,
                     "etcd3": {**LOGIN, "password": "another"}})
    assert a.touch_member(MEMBER) and a.update_leader(a.get_cluster(), 1)


def test_rights_are_taken_away_and_given_back(guard, patronis):
    server, root = guard()
    a = patronis(server.endpoint, section=LOGIN)
    assert a.attempt_to_acquire_leader()
    call(root, "/auth/user/revoke", name="patroni", role="patroni")
    assert a.touch_member(MEMBER) is False
    with pytest.raises(etcd3.PermissionDenied):
        a._client.put("/service/x", "1")
    call(root, "/auth/user/grant", user="patroni", role="patroni")
    assert a.touch_member(MEMBER)


def test_a_user_is_deleted(guard, patronis):
    server, root = guard()
    a = patronis(server.endpoint, section=LOGIN)
    assert a.attempt_to_acquire_leader()
    call(root, "/auth/user/delete", name="patroni")
    assert a.touch_member(MEMBER) is False
    with pytest.raises((etcd3.AuthFailed, DCSError)):
        a._client.put("/service/x", "1")


def test_a_restart_of_the_server_with_authentication(guard, patronis):
    server, _ = guard()
    a, b = (patronis(server.endpoint, name=name, section=LOGIN) for name in "ab")
    assert a.attempt_to_acquire_leader() and eventually(lambda: b.get_cluster().leader_name == "a")
    server.stop()
    assert server.resume()
    assert a.update_leader(a.get_cluster(), 1)
    eventually(lambda: b.get_cluster().status.last_lsn == 1)
