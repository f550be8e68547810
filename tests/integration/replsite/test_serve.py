"""The commands as processes: serve, runreplication, follow; and the real netcat."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request

import pytest
from django.core.management import CommandError, call_command

from streams.epochs import current_epoch
from streams.models import Reader
from tests.support.full_disk import FULL, needs_full_disk
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, positioned, ready_ports, start_replication
from tests.support.writing import append, fact, session, stream

pytestmark = pytest.mark.django_db(transaction=True)


# --- serve and runreplication -------------------------------------------------------------------------------------


def test_serve_offers_pages_and_replication_in_one_process(start_manage):
    ports = ready_ports(start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"))
    assert list(ports) == ["http", "replication"]
    with positioned(ports["replication"]) as client:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/admin/login/", timeout=DEADLINE_SECONDS) as page:
            assert page.status == 200
        append()
        client.read_until("RDATA caches")


def test_pages_come_through_a_socket_of_the_machine(start_manage, tmp_path):
    path = tmp_path / "1.sock"
    with socket.socket(socket.AF_UNIX) as left_by_a_killed_process:
        left_by_a_killed_process.bind(str(path))
    process = start_manage("serve", "--http", f"unix:{path}", "--replication", "127.0.0.1:0")
    assert process.stdout.readline().startswith(f"ready http=unix:{path} replication=127.0.0.1:")
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /admin/login/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(1_000).startswith(b"HTTP/1.1 200 OK")
    process.terminate()
    assert process.wait(DEADLINE_SECONDS) == 0


def test_pages_for_other_machines_are_for_a_proxy(start_manage, run_manage):
    done = run_manage("serve", "--http", "0.0.0.0:0", "--replication", "127.0.0.1:0")
    assert done.returncode == 2
    assert "127.0.0.1:8000" in done.stderr and "--behind-proxy" in done.stderr
    process = start_manage("serve", "--http", "0.0.0.0:0", "--behind-proxy", "--replication", "127.0.0.1:0")
    assert ready_ports(process)["http"] > 0


#: What a server gives a client that takes nothing, or says nothing: longer than a test waits for the end of the process.
PATIENT = {
    "REPLSITE_CLOSE_LIMIT_SECONDS": "400", "REPLSITE_SEND_STALL_LIMIT_SECONDS": "400", "REPLSITE_PING_TIMEOUT_SECONDS": "400",
}  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_stop_says_so_and_waits_for_nobody(start_manage, number):
    """A client that reads is gone when it was told, not when the limit of closing is over: that is set beyond the deadline."""
    process = start_manage("runreplication", "--bind", "127.0.0.1:0", env=PATIENT)
    with positioned(ready_ports(process)["replication"], "last") as client:
        process.send_signal(number)
        assert client.read_to_end()[-1] == "ERROR server stopping"
        assert process.wait(DEADLINE_SECONDS) == 0
    assert set(Reader.objects.filter(name="last").values_list("close_reason", flat=True)) == {"stopping"}


def test_stop_does_not_wait_for_a_client_that_reads_nothing(start_manage):
    process = start_manage("runreplication", "--bind", "127.0.0.1:0", env=PATIENT)
    with positioned(ready_ports(process)["replication"]):
        for _ in range(8):
            stream().append(*(fact("x" * 10_000) for _ in range(100)))
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 0


def test_other_networks_are_refused_without_a_setting(run_manage):
    done = run_manage("runreplication", "--bind", "0.0.0.0:0")
    assert done.returncode == 2
    assert "REPLSITE_PLAIN_NETWORKS" in done.stderr


def test_a_named_network_may_be_used(start_manage):
    process = start_manage("runreplication", "--bind", "0.0.0.0:0", env={"REPLSITE_PLAIN_NETWORKS": "0.0.0.0/32"})
    assert ready_ports(process)["replication"] > 0


def test_a_database_that_is_down_is_one_clear_error(run_manage, free_port):
    url = f"postgres://nobody@127.0.0.1:{free_port}/nothing"
    done = run_manage("runreplication", "--bind", "127.0.0.1:0", env={"DATABASE_URL": url})
    assert done.returncode == 1
    assert "cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(shutil.which("nc") is None, reason="no nc here: Debian's package netcat-openbsd")
def test_it_can_be_driven_by_hand_with_netcat(port):
    done = subprocess.run(
        ["nc", "-N", "127.0.0.1", str(port)],
        input="NAME by-hand\n\nREPLICATE\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "SERVER localhost"
    assert re.fullmatch(r"PING \d{13}", lines[1])
    assert any(re.fullmatch(r"POSITION caches \S+ (\d+) \1", line) for line in lines)


def test_a_peer_that_closes_its_half_still_gets_its_answer(port):
    with WireClient(port, "REPLICATE") as client:
        client.socket.shutdown(socket.SHUT_WR)
        assert any(line.startswith("POSITION caches") for line in client.read_to_end())


# --- follow -------------------------------------------------------------------------------------------------------


def follow(run_manage, port: int, *arguments: str, **more) -> subprocess.CompletedProcess[str]:
    return run_manage("follow", f"tcp://127.0.0.1:{port}", *arguments, **more)


def test_follow_prints_json_from_a_token_until_another(port, run_manage):
    wanted = append(10)
    span = ("--from", f"caches={wanted[1]}", "--until", f"caches={wanted[7]}")
    done = follow(run_manage, port, "--json", "--view", "linear", *span, "--timeout", "20")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [row["token"] for row in rows] == wanted[2:8]
    assert {tuple(row) for row in rows} == {("stream", "instance", "token", "row")}
    assert {(row["stream"], row["instance"], row["row"][0]) for row in rows} == {("caches", "master", "test")}


def test_follow_takes_a_token_of_this_epoch_and_refuses_one_of_another(port, run_manage):
    [before, only] = append(2)
    with session() as cursor:
        epoch = current_epoch(cursor)
    until = ("--until", f"caches={only}", "--timeout", "20")
    done = follow(run_manage, port, "--from", f"caches={before}@{epoch}", *until)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
    done = follow(run_manage, port, "--from", f"caches={before}@restored", *until)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is of epoch restored, but the database is in epoch" in done.stderr
    done = follow(run_manage, port, "--catch-up", "none", "--from", f"caches={before}@{epoch}", *until)
    assert (done.returncode, "leave @" in done.stderr) == (2, True)


def test_follow_prints_a_line_for_people(port, run_manage):
    [before, only] = append(2)
    done = follow(run_manage, port, "--from", f"caches={before}", "--until", f"caches={only}", "--timeout", "20")
    assert re.fullmatch(rf'caches master {only} \["test",\["k"\],\d+\]\n', done.stdout)


def test_follow_that_is_there_already_prints_nothing(port, run_manage):
    last = append(3)[-1]
    done = follow(run_manage, port, "--until", f"caches={last}", "--timeout", "20", "--json")
    assert (done.returncode, done.stdout) == (0, "")


def test_follow_gives_up_after_its_time(port, run_manage):
    done = follow(run_manage, port, "--until", "caches=999999", "--timeout", "1")
    assert done.returncode == 1
    assert "caches=999999" in done.stderr


def test_follow_gives_up_on_a_server_that_is_not_there(free_port, run_manage):
    assert follow(run_manage, free_port, "--timeout", "1").returncode == 1


def test_follow_refuses_another_server_by_name(port, run_manage):
    done = follow(run_manage, port, "--server-name", "elsewhere.org", "--timeout", "20")
    assert done.returncode == 1
    assert "'localhost'" in done.stderr


def test_our_table_is_never_used_for_a_foreign_server(start_manage, run_manage):
    """The foreign server is a second process of ours under another name, with the same tables as a trap."""
    foreign = start_replication(start_manage, REPLSITE_SERVER_NAME="foreign.org")
    first = append(3)[0]
    arguments = ("--server-name", "foreign.org", "--from", f"caches={first}", "--timeout", "2", "--json")
    done = follow(run_manage, foreign, *arguments)
    assert done.stdout == ""
    assert "facts_missed" in done.stderr
    assert not Reader.objects.filter(kind="follower").exists()


@pytest.mark.parametrize("span", [("--from", "caches=x"), ("--until", "caches=m5~77.9")])
def test_a_token_that_cannot_be_read_is_status_two(span):
    with pytest.raises(CommandError) as error:
        call_command(
            "follow", "tcp://127.0.0.1:1", *span, "--timeout", "20"
        )  # what is taken after all ends, with status 1
    assert error.value.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_follow_ends_cleanly_when_told_to(port, start_manage, number):
    process = start_manage("follow", f"tcp://127.0.0.1:{port}", "--json", "--name", "told")
    wait_until(lambda: Reader.objects.filter(name="told", kind="follower", positions__has_key="caches").exists())
    last = append(5)[-1]
    assert [json.loads(process.stdout.readline())["token"] for _ in range(5)][-1] == last
    row = Reader.objects.filter(kind="follower", name="told", positions__caches__master=last)
    wait_until(row.exists)
    process.send_signal(number)
    assert process.wait(DEADLINE_SECONDS) == 0
    assert Reader.objects.get(kind="follower", name="told").closed_at is not None


@needs_full_disk
def test_follow_ends_when_its_output_cannot_be_written(port, run_manage):
    first, last = append(2)[0], append()[-1]
    span = ("--from", f"caches={first - 1}", "--until", f"caches={last}", "--timeout", "20")
    with FULL.open("w") as full:
        done = run_manage("follow", f"tcp://127.0.0.1:{port}", *span, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr.splitlines()[-1]


def test_follow_ends_quietly_when_nobody_reads_its_output(port, start_manage):
    errors: list[str] = []
    process = start_manage("follow", f"tcp://127.0.0.1:{port}", "--name", "unread", stderr=subprocess.PIPE)
    reader = threading.Thread(target=lambda: errors.extend(process.stderr))
    reader.start()
    wait_until(lambda: Reader.objects.filter(name="unread", kind="follower", positions__has_key="caches").exists())
    process.stdout.close()
    append(3)
    assert process.wait(DEADLINE_SECONDS) == 0
    reader.join()
    assert not [line for line in errors if "Traceback" in line or "Exception" in line]
