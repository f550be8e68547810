"""TLS of the replication port with processes: who gets in, what the others are told, and what is counted."""

from __future__ import annotations

import contextlib
import json
import subprocess

import pytest

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.homeserver.append import push_rules_changed
from streams.models import Reader, SyncingUser, WireCount
from streams.replication.transport.tls import TlsFiles, client_context
from tests.support.certificates import Authority
from tests.support.floods import memory
from tests.support.waiting import DEADLINE_SECONDS, wait_until
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


def secure(port: int, authority: Authority, hello: str = "", name: str = "worker") -> WireClient:
    context = client_context(TlsFiles(*authority.sign(name), str(authority.file)))
    client = WireClient(port)
    client.socket.settimeout(DEADLINE_SECONDS)
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    if hello:
        client.say(hello)
    return client


def refused(reason: str) -> int:
    return sum(WireCount.objects.filter(kind="refused", name=reason).values_list("total", flat=True))


def test_facts_flow_through_tls(port, authority):
    with secure(port, authority, "NAME worker\nPING 1\nREPLICATE") as client:
        client.read_until("POSITION caches")
        append(300)
        client.read_until(lambda line: len(client.of("RDATA caches")) == 300)
        wait_until(lambda: Reader.objects.filter(name="worker", rights__isnull=True).exists(), what="no rule limits it")


def append_megabytes(number: int) -> int:
    """Append them in one transaction; the last token."""
    facts = [CacheInvalidation(cache_name="x", keys=["k" * 8_000]) for _ in range(125 * number)]
    return registry.get("caches").append(*facts)[-1]


def follow(port: int, authority: Authority, name: str) -> WireClient:
    client = secure(port, authority, f"NAME {name}\nREPLICATE", name)
    client.read_until("POSITION caches")
    return client


def test_all_that_waits_for_a_client_is_counted(port, authority):
    """What was written at once was encrypted at once, and then counted no more: eight megabytes for each client."""
    with follow(port, authority, "deaf"), follow(port, authority, "quick") as quick:
        quick.read_until(f"RDATA caches master {append_megabytes(8)} ")
        row = wait_until(Reader.objects.filter(name="deaf", bytes_out__gt=8_000_000).first)
        assert row.bytes_out - row.buffer_bytes < 2_000_000, "the rest are the kernel's buffers"


@pytest.mark.memory
def test_clients_that_read_nothing_share_what_waits_for_them(start_manage, server_files, authority):
    """Each had a copy: with 300 of them and 16 MB of facts the server took gigabytes, and others got their facts late."""
    process = start_manage("runreplication", "--bind", "127.0.0.1:0", *server_files)
    port = ready_ports(process)["replication"]
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(follow(port, authority, "deaf"))
        quick = stack.enter_context(follow(port, authority, "quick"))
        before = memory(process.pid)
        quick.read_until(f"RDATA caches master {append_megabytes(16)} ")
        assert memory(process.pid) - before < 200_000_000, "two megabytes for each; sixteen with copies"


def test_a_follower_that_does_not_get_in_learns_why(port, authority, start_manage):
    """Each tries for three seconds, all at the same time."""
    old = authority.sign("old", expired=True)
    certificate, trusts = ["--tls-certificate", old[0], "--tls-key", old[1]], ["--tls-ca", str(authority.file)]
    plain = start_replication(start_manage)

    def follow(address: str, *options: str):
        given = [address, *options, "--timeout", "3"]
        return start_manage("follow", *given, env={"REPLSITE_LOG_LEVEL": "INFO"}, stderr=subprocess.PIPE)

    for process, *words in [
        (follow(f"tcps://127.0.0.1:{port}", *trusts), "a client certificate is needed"),
        (follow(f"tls://127.0.0.1:{port}", *certificate, *trusts), "our client certificate has expired"),
        (follow(f"tls://127.0.0.1:{port}"), "not trusted", "--tls-ca"),
        (follow(f"tcp://127.0.0.1:{port}"), "this port speaks TLS only"),
        (follow(f"tls://127.0.0.1:{plain}", *trusts), "does not speak TLS there"),
    ]:
        _, said = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 1
        assert [word for word in words if word not in said] == []
        assert "Traceback" not in said
    for reason in ("no client certificate", "client certificate expired", "plain text to a TLS port"):
        wait_until(lambda reason=reason: refused(reason), what=reason)
    wait_until(WireCount.objects.filter(kind="closed", name="spoke TLS").exists)


def test_an_orderly_stop_is_told_through_tls_at_any_address(start_manage, server_files, authority):
    process = start_manage("runreplication", "--bind", "0.0.0.0:0", *server_files)
    with secure(ready_ports(process)["replication"], authority, "REPLICATE") as client:
        client.read_until("POSITION caches")
        process.terminate()
        assert client.read_to_end()[-1] == "ERROR server stopping"
    assert process.wait(DEADLINE_SECONDS) == 0


def test_new_certificates_are_taken_without_a_restart(port, authority):
    def expiry() -> str:
        context = client_context(TlsFiles(*authority.sign("worker"), str(authority.file)))
        client = WireClient(port)
        with context.wrap_socket(client.socket, server_hostname="127.0.0.1") as wrapped:
            return str(wrapped.getpeercert()["serialNumber"])

    before = expiry()
    authority.sign("server", server=True)
    wait_until(lambda: expiry() != before)


def test_files_that_cannot_be_used_end_the_start(run_manage, server_files, tmp_path):
    done = run_manage("runreplication", "--bind", "127.0.0.1:0", *server_files[:4], "--tls-client-ca", "nowhere.pem")
    assert done.returncode == 2
    assert "nowhere.pem cannot be read" in done.stderr
    done = run_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", *server_files[:4])
    assert done.returncode == 2
    assert "REPLSITE_TLS_CLIENT_CA" in done.stderr


# --- rights -----------------------------------------------------------------------------------------------------------

RIGHTS = {
    "worker": {"names": ["{certificate}"], "streams": ["caches"], "reports": ["FEDERATION_ACK"]},
    "follower": {"streams": ["events"]},
}


@pytest.fixture
def strict_port(start_manage, server_files) -> int:
    env = {"REPLSITE_WIRE_RIGHTS": json.dumps(RIGHTS)}
    return ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0", *server_files, env=env))["replication"]


def closed(reason: str) -> int:
    return sum(WireCount.objects.filter(kind="closed", name=reason).values_list("total", flat=True))


def test_what_a_certificate_may_not_say_ends_the_connection(strict_port, authority):
    for name, said, why in (
        ("worker", "NAME other", "this certificate may not call itself other"),
        ("worker", "NAME worker\nUSER_SYNC i @u:x start 1", "this certificate may not send USER_SYNC"),
        ("stranger", "", "this certificate has no rights here"),
    ):
        with secure(strict_port, authority, said, name) as client:
            assert client.read_to_end()[-1] == f"ERROR {why}"
        wait_until(lambda name=name, why=why: rights_of(name)["refusal"] == why, what=why)
    wait_until(lambda: closed("not allowed"))


def test_a_certificate_gets_only_its_streams(strict_port, authority):
    with secure(strict_port, authority, "NAME worker\nREPLICATE") as client:
        client.read_until("POSITION caches")
        append(3)
        push_rules_changed("@ann:site")
        append(1)
        client.read_until(lambda line: len(client.of("RDATA caches")) == 4)
        client.say("FEDERATION_ACK worker 1\nREPLICATE")
        client.read_until("POSITION caches")
        streams = {line.split(" ")[1] for line in [*client.of("RDATA"), *client.of("POSITION")]}
        assert streams == {"caches"}


def rights_of(certificate: str) -> dict:
    """What the row of the connection with this certificate says of its rights, of the last one."""
    found = Reader.objects.filter(rights__certificate=certificate).order_by("connected_at").last()
    return found.rights if found is not None else {"refusal": ""}


def test_the_row_of_a_connection_says_what_it_may_and_what_was_refused(strict_port, authority):
    with secure(strict_port, authority, "NAME worker\nREPLICATE\nFEDERATION_ACK other 1") as client:
        client.read_until("POSITION caches")
        allowed = {"certificate": "worker", "names": ["worker"], "streams": ["caches"], "reports": ["FEDERATION_ACK"]}
        refused = {"refused": 1, "refusal": "it may not acknowledge for other"}
        wait_until(lambda: rights_of("worker") == allowed | refused)
        client.say("USER_SYNC i @u:x start 1")
        client.read_to_end()
    refused = {"refused": 2, "refusal": "this certificate may not send USER_SYNC"}
    wait_until(lambda: rights_of("worker") == allowed | refused)


@pytest.fixture
def crowded_port(start_manage, server_files) -> int:
    env = {"REPLSITE_WIRE_RIGHTS": json.dumps({"worker{n}": {"reports": ["USER_SYNC", "CLEAR_USER_SYNC"]}})}
    return ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0", *server_files, env=env))["replication"]


def test_a_certificate_cannot_report_the_users_of_anothers_worker_process(crowded_port, authority):
    def syncing() -> list[str]:
        return sorted(SyncingUser.objects.values_list("user_id", flat=True))

    with secure(crowded_port, authority, "NAME worker1\nUSER_SYNC abc @ann:x start 1", "worker1") as first:
        first.read_until("SERVER")
        wait_until(lambda: syncing() == ["@ann:x"])
        for said in ("USER_SYNC abc @mallory:x start 1", "USER_SYNC abc @ann:x end 1", "CLEAR_USER_SYNC abc"):
            with secure(crowded_port, authority, f"NAME worker2\n{said}", "worker2") as second:
                why = "this certificate may not report users of worker process abc, which is another's"
                assert second.read_to_end()[-1] == f"ERROR {why}"
        assert syncing() == ["@ann:x"]
        with secure(crowded_port, authority, "NAME worker1\nUSER_SYNC abc @ben:x start 1", "worker1"):
            wait_until(lambda: syncing() == ["@ben:x"])  # the same process over a new connection


@pytest.fixture
def open_port(start_manage, server_files) -> int:
    env = {"REPLSITE_WIRE_RIGHTS": json.dumps({"*": {"reports": ["USER_SYNC", "CLEAR_USER_SYNC"]}})}
    return ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0", *server_files, env=env))["replication"]


@pytest.mark.parametrize("owner", ["worker1", ""])
def test_a_certificate_without_a_name_cannot_report_them_either(open_port, authority, owner):
    """It may be any certificate without a name, so not even another one counts as the same."""
    with secure(open_port, authority, "NAME x\nUSER_SYNC abc @ann:x start 1", owner) as first:
        first.read_until("SERVER")
        wait_until(lambda: SyncingUser.objects.filter(user_id="@ann:x").exists())
        with secure(open_port, authority, "NAME y\nUSER_SYNC own @ben:x start 1\nCLEAR_USER_SYNC abc", "") as second:
            why = "this certificate may not report users of worker process abc, which is another's"
            assert second.read_to_end()[-1] == f"ERROR {why}"
        assert SyncingUser.objects.filter(user_id="@ann:x").exists()


def test_rights_that_cannot_be_read_stop_the_start(run_manage, server_files):
    env = {"REPLSITE_WIRE_RIGHTS": '{"w": {"streams": "events"}}'}
    done = run_manage("runreplication", "--bind", "127.0.0.1:0", *server_files, env=env)
    assert done.returncode == 2
    assert "streams must be a list of texts" in done.stderr
