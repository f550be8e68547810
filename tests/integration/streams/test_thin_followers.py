"""A client that asks for some streams gets the lines of no other; one that names none gets all, as of 1.43."""

from __future__ import annotations

import json

import pytest

from streams.homeserver.append import push_rules_changed
from streams.models import Reader
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, start_replication
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)


def streams_in(lines: list[str]) -> set[str]:
    return {line.split(" ")[1] for line in lines if line.startswith(("RDATA", "POSITION"))}


def test_a_client_that_names_streams_gets_only_these(start_manage):
    port = start_replication(start_manage)
    with WireClient(port) as thin, WireClient(port) as whole:
        thin.say("NAME thin\nPING 1\nREPLICATE caches,receipts,none")
        thin.read_until("POSITION receipts")
        whole.say("NAME whole\nPING 1\nREPLICATE")
        whole.read_until("POSITION receipts")
        append(2)
        push_rules_changed("@ann:site")
        last = append(1)[-1]
        for client in (thin, whole):
            client.read_until(f"RDATA caches master {last} ")
        assert streams_in(thin.lines) == {"caches", "receipts"}
        assert {"caches", "push_rules", "events"} <= streams_in(whole.lines)
        assert thin.of("RDATA caches") == whole.of("RDATA caches")
        reader = wait_until(lambda: Reader.objects.filter(name="thin").exclude(positions={}).first())
        assert set(reader.positions) <= {"caches", "receipts"}
        thin.lines.clear()
        thin.say("REPLICATE")
        thin.read_until("POSITION push_rules")
        push_rules_changed("@ann:site")
        thin.read_until("RDATA push_rules")


def test_our_follower_names_its_streams(start_manage, run_manage):
    port = start_replication(start_manage)
    ids = append(3)
    done = run_manage(
        "follow", f"tcp://127.0.0.1:{port}", "--streams", "caches", "--from", "caches=1", "--until", f"caches={ids[-1]}",
        "--json", "--timeout", "40",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["token"] for line in done.stdout.splitlines()] == ids
