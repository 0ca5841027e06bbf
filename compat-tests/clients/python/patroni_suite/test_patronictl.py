"""The command patronictl as it is installed, and connections over TLS."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from conftest import eventually
from patroni.dcs import get_dcs
from test_auth import CHEAP, LOGIN, call, make_users

MEMBER = {"conn_url": "postgres://127.0.0.1:5432/postgres", "api_url": "http://127.0.0.1:1/patroni", "state": "running",
          "role": "replica", "version": "4.1.5", "xlog_location": 1234, "timeline": 1}


@pytest.fixture
def patronictl(patronis, tmp_path):
    """Runs it with a configuration file of the test's cluster."""

    def run(server, *arguments, answers="", section=(), code=0):
        file = tmp_path / "patronictl.yml"
        file.write_text(json.dumps(patronis.configuration(server.endpoint, section=section)))
        command = [sys.executable, Path(sys.executable).with_name("patronictl"), "-c", file, *arguments]
        result = subprocess.run(command, input=answers, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                timeout=60)
        assert result.returncode == code, result.stdout
        return result.stdout

    return run


def test_patronictl(patronictl, patronis, shared):
    # Nobody renews their leases meanwhile.
    a, b = (patronis(shared.endpoint, name=name, ttl=600) for name in "ab")
    assert a.initialize(sysid="7123456789012345678") and a.attempt_to_acquire_leader()
    assert a.touch_member({**MEMBER, "role": "primary"}) and b.touch_member(MEMBER)
    assert a.update_leader(a.get_cluster(), 1234) and a.set_config_value('{"ttl":30,"loop_wait":10}')
    assert a.set_history_value('[[1,1000,"no recovery target specified","2030-01-01T00:00:00+00:00","a"]]')

    listed = {row["Member"]: row for row in json.loads(patronictl(shared, "list", "-f", "json"))}
    assert {name: row["Role"] for name, row in listed.items()} == {"a": "Leader", "b": "Replica"}
    assert {row["State"] for row in listed.values()} == {"running"}

    patronictl(shared, "edit-config", patronis.scope, "--force", "-q", "-s", "ttl=45", "-p", "max_connections=77")
    expected = {"ttl": 45, "loop_wait": 10, "postgresql": {"parameters": {"max_connections": 77}}}
    assert eventually(lambda: (c := b.get_cluster().config.data) != {"ttl": 30, "loop_wait": 10} and c) == expected
    assert "max_connections: 77" in patronictl(shared, "show-config", patronis.scope)
    assert "no recovery target" in patronictl(shared, "history", patronis.scope, "-f", "json")
    assert "host=127.0.0.1 port=5432" in patronictl(shared, "dsn", patronis.scope)

    patronictl(shared, "remove", patronis.scope, answers=f"{patronis.scope}\nYes I am aware\na\n")
    eventually(lambda: b.get_cluster().is_empty() and not b.get_cluster().members)


def test_patronictl_with_a_wrong_password(patronictl, patronis, serve):
    server = serve(CHEAP)
    ctl = patronis(server.endpoint, patronictl=True)
    make_users(ctl)
    call(ctl, "/auth/enable")
    told = patronictl(server, "list", section={**LOGIN, "password": "wrong"}, code=1)
    assert "authentication failed, invalid user ID or password" in told
    patronictl(server, "list", section=LOGIN)


@pytest.fixture
def authority(tmp_path):
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    made.file = tmp_path / "ca.pem"

    def issue(name, *hosts, **options):
        files = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        pair = made.issue_cert(*hosts, **options)
        files[0].write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
        pair.private_key_pem.write_to_path(files[1])
        return files

    made.issue = issue
    return made


def test_tls(patronis, serve, authority):
    cert, key = authority.issue("server", "127.0.0.1")
    server = serve(f"--cert-file={cert}", f"--key-file={key}")
    section = {"protocol": "https", "cacert": str(authority.file)}
    a, b = (patronis(server.endpoint, name=name, section=section) for name in "ab")
    assert a._client.machines_cache == [server.url]
    assert a.attempt_to_acquire_leader() and eventually(lambda: b.get_cluster().leader_name == "a")
    server.stop()
    assert server.resume()
    eventually(lambda: a.update_leader(a.get_cluster(), 5), within=30)
    eventually(lambda: b.get_cluster().status.last_lsn == 5)


def test_tls_with_a_clients_certificate(patronis, serve, authority):
    cert, key = authority.issue("server", "127.0.0.1")
    server = serve(f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={authority.file}", "--client-cert-auth")
    own = authority.issue("client", "patroni.example")
    section = {"protocol": "https", "cacert": str(authority.file), "cert": str(own[0]), "key": str(own[1])}
    a, b = (patronis(server.endpoint, name=name, section=section) for name in "ab")
    assert a.attempt_to_acquire_leader() and eventually(lambda: b.get_cluster().leader_name == "a")


def test_a_url_with_the_login_in_it(patronis, serve):
    server = serve(CHEAP)
    ctl = patronis(server.endpoint, patronictl=True)
    make_users(ctl, password="secret")
    call(ctl, "/auth/enable")
    configuration = patronis.configuration()
    configuration["etcd3"] = {"url": server.url.replace("//", "//patroni:secret@")}
    a = get_dcs(configuration)
    patronis.made.append(a)
    assert a._client._token and a.attempt_to_acquire_leader()
    assert a._client.machines_cache == [server.url]
