"""TLS of the replication port with processes: who gets in, what the others are told, and what is counted."""

from __future__ import annotations

import json
import subprocess

import pytest

from streams.models import WireCount
from streams.replication.transport.tls import TlsFiles, client_context
from tests.support.certificates import Authority
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, ready_ports, start_replication
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def server_files(authority):
    certificate, key = authority.sign("server", server=True)
    return ["--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", str(authority.file)]


@pytest.fixture
def port(start_manage, server_files) -> int:
    return ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0", *server_files))["replication"]


def secure(port: int, authority: Authority, hello: str = "") -> WireClient:
    context = client_context(TlsFiles(*authority.sign("worker"), str(authority.file)))
    client = WireClient(port)
    client.socket.settimeout(20)
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    if hello:
        client.say(hello)
    return client


def refused(reason: str) -> int:
    return sum(WireCount.objects.filter(kind="refused", name=reason).values_list("total", flat=True))


def test_facts_flow_through_tls(port, authority):
    with secure(port, authority, "NAME worker\nPING 1\nREPLICATE") as client:
        client.read_until("POSITION caches", 20)
        append(300)
        client.read_until(lambda line: len(client.of("RDATA caches")) == 300, 30)


def test_our_follower_follows_through_tls(port, authority, run_manage):
    ids = append(5)
    certificate, key = authority.sign("follower")
    done = run_manage(
        "follow", f"tls://127.0.0.1:{port}", "--from", "caches=1", "--until", f"caches={ids[-1]}", "--json",
        "--tls-certificate", certificate, "--tls-key", key, "--tls-ca", str(authority.file), "--timeout", "40",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["token"] for line in done.stdout.splitlines()] == ids


def test_a_follower_without_a_certificate_learns_why(port, authority, run_manage):
    done = run_manage(
        "follow", f"tcps://127.0.0.1:{port}", "--tls-ca", str(authority.file), "--timeout", "4",
        env={"REPLSITE_LOG_LEVEL": "INFO"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "a client certificate is needed" in done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: refused("no client certificate"), 20)


def test_a_follower_with_an_expired_certificate_learns_why(port, authority, run_manage):
    certificate, key = authority.sign("old", expired=True)
    done = run_manage(
        "follow", f"tls://127.0.0.1:{port}", "--timeout", "4",
        "--tls-certificate", certificate, "--tls-key", key, "--tls-ca", str(authority.file),
    )  # fmt: skip
    assert done.returncode == 1
    assert "our client certificate has expired" in done.stderr
    wait_until(lambda: refused("client certificate expired"), 20)


def test_a_follower_that_does_not_know_the_authority_learns_why(port, run_manage):
    done = run_manage("follow", f"tls://127.0.0.1:{port}", "--timeout", "4")
    assert done.returncode == 1
    assert "not trusted" in done.stderr
    assert "--tls-ca" in done.stderr


def test_plain_text_is_answered_with_a_reason_and_counted(port):
    with WireClient(port, "NAME worker1\nPING 1\nREPLICATE ") as client:
        assert client.read_to_end()[0].startswith("ERROR this port speaks TLS only")
    wait_until(lambda: refused("plain text to a TLS port") == 1, 20)


def test_a_follower_that_speaks_the_other_language_learns_why(port, authority, start_manage, run_manage):
    done = run_manage("follow", f"tcp://127.0.0.1:{port}", "--timeout", "3")
    assert "this port speaks TLS only" in done.stderr
    plain = start_replication(start_manage)
    done = run_manage("follow", f"tls://127.0.0.1:{plain}", "--tls-ca", str(authority.file), "--timeout", "3")
    assert done.returncode == 1
    assert "does not speak TLS there" in done.stderr
    closed = WireCount.objects.filter(kind="closed", name="spoke TLS")
    wait_until(closed.exists, 20)


def test_openssl_gets_in_with_its_certificate(port, authority):
    certificate, key = authority.sign("worker")
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-quiet", "-cert", certificate, "-key", key,
         "-CAfile", str(authority.file), "-verify_return_error"],
        input="REPLICATE\nBOGUS\n", capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("SERVER localhost\nPING "), done.stderr


def test_any_address_may_be_used_with_tls(start_manage, server_files, authority):
    port = ready_ports(start_manage("runreplication", "--bind", "0.0.0.0:0", *server_files))["replication"]
    with secure(port, authority, "REPLICATE") as client:
        client.read_until("POSITION caches", 20)


def test_an_orderly_stop_is_told_through_tls(start_manage, server_files, authority):
    process = start_manage("runreplication", "--bind", "127.0.0.1:0", *server_files)
    with secure(ready_ports(process)["replication"], authority, "REPLICATE") as client:
        client.read_until("POSITION caches", 20)
        process.terminate()
        assert client.read_to_end(20)[-1] == "ERROR server stopping"
    assert process.wait(20) == 0


def test_new_certificates_are_taken_without_a_restart(port, authority):
    def expiry() -> str:
        context = client_context(TlsFiles(*authority.sign("worker"), str(authority.file)))
        client = WireClient(port)
        with context.wrap_socket(client.socket, server_hostname="127.0.0.1") as wrapped:
            return str(wrapped.getpeercert()["serialNumber"])

    before = expiry()
    authority.sign("server", server=True)
    wait_until(lambda: expiry() != before, 30)


def test_files_that_cannot_be_used_end_the_start(run_manage, server_files, tmp_path):
    done = run_manage("runreplication", "--bind", "127.0.0.1:0", *server_files[:4], "--tls-client-ca", "nowhere.pem")
    assert done.returncode == 2
    assert "nowhere.pem cannot be read" in done.stderr
    done = run_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", *server_files[:4])
    assert done.returncode == 2
    assert "REPLSITE_TLS_CLIENT_CA" in done.stderr
