"""What followers of a server see of the plain homeserver streams: announcements, pairs that move together, new beginnings."""

from __future__ import annotations

import json
import subprocess

import pytest

from streams import registry
from streams.homeserver import append, federation_queue
from streams.homeserver import typing as typing_users
from streams.models import FederationAcknowledgement
from streams.replication.protocol.commands import RData, parse_line
from tests.integration.streams.test_catalog import NAMES, _sequences_as_after_migrate, rows
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, positioned, start_replication
from tests.support.writing import linear

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["_sequences_as_after_migrate"]  # the fixture


def announced(client: WireClient) -> list[str]:
    client.read_until("POSITION user_signature")
    return list(dict.fromkeys(line.split()[1] for line in client.of("POSITION")))


def rdata(client: WireClient, stream: str) -> list[RData]:
    found = [parse_line(line) for line in client.of("RDATA", stream)]
    return [command for command in found if isinstance(command, RData)]


def test_federation_is_announced_only_when_somebody_else_sends(start_manage):
    with positioned(start_replication(start_manage)) as client:
        assert announced(client) == [name for name in NAMES if name != "federation"]
        federation_queue.send_federation([("e", {})])
        token = append.push_rules_changed("@u:x")
        client.read_until(f"RDATA push_rules master {token}")
        assert client.of("RDATA federation") == []
    with positioned(start_replication(start_manage, REPLSITE_SEND_FEDERATION="false"), "sender1") as client:
        assert announced(client) == NAMES


def test_empty_streams_are_at_one_and_those_in_memory_at_zero(start_manage):
    with positioned(start_replication(start_manage, REPLSITE_SEND_FEDERATION="false"), "sender1") as client:
        announced(client)
        at = {line.split()[1]: line.split()[3:] for line in client.of("POSITION")}
    in_memory = {"typing", "presence_federation", "federation"}
    assert at == {name: ["0", "0"] if name in in_memory else ["1", "1"] for name in NAMES}


def test_position_of_the_other_stream_of_a_pair_moves_without_rows(start_manage):
    with positioned(start_replication(start_manage)) as client:
        token = append.set_tags("@u:x", "!r:x", {})
        client.read_until(f"RDATA tag_account_data master {token}")
        client.read_until(lambda line: line.startswith("POSITION account_data") and line.endswith(f" {token}"))
        assert client.of("RDATA account_data") == []


def test_every_server_sends_what_is_in_memory(start_manage):
    ports = [start_replication(start_manage) for _ in range(2)]
    with positioned(ports[0]) as first, positioned(ports[1]) as second:
        typing_users.set_typing("!r:x", "@a:x", True)
        for client in (first, second):
            client.read_until('RDATA typing master 1 ["!r:x",["@a:x"]]')


def test_acknowledged_items_leave_the_table(start_manage):
    tokens = [federation_queue.send_federation([("e", {"n": n})]) for n in range(3)]
    wait_until(lambda: linear("federation") >= tokens[2])
    with positioned(start_replication(start_manage, REPLSITE_SEND_FEDERATION="false"), "sender1") as client:
        client.say(f"FEDERATION_ACK sender1 {tokens[1]}")
        wait_until(lambda: [token for token, _ in rows("federation")] == tokens[2:])
    assert FederationAcknowledgement.objects.get().token == tokens[1]


def test_our_follower_follows_all_streams(start_manage):
    port = start_replication(start_manage, REPLSITE_SEND_FEDERATION="false")
    typing_users.set_typing("!r:x", "@a:x", True)
    follower = start_manage(
        "follow",
        f"tcp://127.0.0.1:{port}",
        "--json",
        "--timeout",
        "60",
        "--until",
        "groups=2",
        stderr=subprocess.DEVNULL,
    )
    wait_until(is_following)
    typing_users.set_typing("!r:x", "@b:x", True)
    for name in NAMES:
        if name not in ("events", "backfill", "groups"):
            from streams.load_generator import generator

            generator(name, 0).append(1)
    wait_until(lambda: follower_has(registry.names()))
    append.group_changed("+g:x", "@u:x", {"membership": "join"})
    output, _ = follower.communicate(timeout=DEADLINE_SECONDS)
    found = [json.loads(line) for line in output.splitlines()]
    typing = [(line["token"], line["row"]) for line in found if line["stream"] == "typing"]
    assert typing[:1] == [(2, ["!r:x", ["@a:x", "@b:x"]])]
    assert {line["stream"] for line in found} == set(NAMES) - {"events", "backfill"}


def is_following() -> bool:
    from streams.models import Reader

    reader = Reader.objects.filter(kind="follower", closed_at=None).first()
    return reader is not None and "typing" in reader.positions


def follower_has(names: list[str]) -> bool:
    from streams.models import Reader
    from tests.support.writing import linear

    positions = Reader.objects.get(kind="follower").positions
    return all(min(positions.get(name, {"": 0}).values()) >= linear(name) for name in names if name != "groups")
