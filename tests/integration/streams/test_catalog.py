"""Every stream of the catalog, from append to the client's parser, on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from streams import registry
from streams.catalog import models as catalog
from streams.errors import UnusableFact
from streams.homeserver import append, federation_queue, freeing, typing
from streams.load_generator import generator
from streams.models import FederationAcknowledgement
from streams.reading.rows import rows_between
from streams.replication.common import worker_sql
from streams.replication.protocol.announcer import Read
from streams.replication.protocol.commands import RData, parse_line
from streams.replication.server.broadcast_reader import read_lines
from tests.support.writing import session, stored

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = [
    "events", "backfill", "presence", "presence_federation", "typing", "receipts", "push_rules", "pushers", "caches",
    "device_lists", "to_device", "federation", "tag_account_data", "account_data", "groups", "user_signature",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _sequences_as_after_migrate(transactional_db: None) -> None:
    """Emptying tables between tests leaves sequences where they are."""
    with session() as cursor:
        for stream in registry.all_streams():
            empty = stream.declaration.empty_position
            cursor.execute("SELECT setval(%s, 1, %s)", [stream.declaration.sequence, empty == 1])


def rows(name: str, after: int = 0) -> list[tuple[int, Any]]:
    """(token, wire row) of everything in the stream's tables."""
    with session() as cursor:
        found, _ = rows_between(cursor, registry.get(name).declaration, None, after, 10**9, 1000)
    return [(row.token, row.row) for row in found]


def wire(name: str, after: int = 0) -> list[RData]:
    """What a client makes of the lines that a server writes for these rows."""
    with session() as cursor:
        lines, _ = read_lines(cursor, registry.get(name).declaration, Read(name, "master", after, 10**9), 16384)
    commands = [parse_line(line) for line in lines.data.decode().splitlines() if line.startswith("RDATA")]
    return [command for command in commands if isinstance(command, RData)]


def test_all_streams_exist_in_the_order_of_the_wire():
    assert registry.names()[: len(NAMES)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_load_generator_line_and_client_agree(name):
    """Made-up facts of every stream, written by the database or by Python, are what the table says."""
    ids = generator(name, 0).append(5)
    assert len(set(ids)) == 5
    parsed = wire(name)
    assert [command.row for command in parsed] == [row for _, row in rows(name)]
    assert {command.token for command in parsed if command.token} <= set(ids)


def test_first_id_is_two_and_in_memory_one():
    assert generator("receipts", 0).append(1) == [2]
    assert generator("typing", 0).append(1) == [1]
    assert generator("device_lists", 0).append(1) == [2]


def test_rows_are_those_of_the_recordings():
    append.set_presence(
        catalog.Presence(
            user_id="@c:x", state="unavailable", last_federation_update_ts=1795225958912, status_msg='gone "fishing" ☕'
        )
    )
    append.add_receipt("!r:x", "m.read", "@d:x", "$e", {"ts": 1795225957840, "hidden": False})
    append.push_rules_changed("@c:x")
    append.pusher_changed("@c:x", "org.example.app", "PushKey With Space", deleted=True)
    append.set_tags("@c:x", "!r:x", {"m.favourite": {"order": 0.5}})
    append.account_data_changed("@c:x", "org.example.after")
    append.account_data_changed("@c:x", "org.example.room", "!r:x")
    append.group_changed("+g:x", "@c:x", {"membership": "join", "content": {}})
    append.signatures_changed("@c:x")
    presence = ["@c:x", "unavailable", 0, 1795225958912, 0, 'gone "fishing" ☕', False]
    assert [command.row for command in wire("presence")] == [presence]
    assert [command.row for command in wire("receipts")] == [
        ["!r:x", "m.read", "@d:x", "$e", {"ts": 1795225957840, "hidden": False}]
    ]
    assert rows("push_rules") == [(2, ["@c:x"])]
    assert rows("pushers") == [(2, ["@c:x", "org.example.app", "PushKey With Space", True])]
    assert rows("tag_account_data") == [(2, ["@c:x", "!r:x", '{"m.favourite":{"order":0.5}}'])]
    assert [row for _, row in rows("account_data")] == [
        ["@c:x", None, "org.example.after"],
        ["@c:x", "!r:x", "org.example.room"],
    ]
    assert rows("groups") == [(2, ["+g:x", "@c:x", "membership", {"membership": "join", "content": {}}])]
    assert rows("user_signature") == [(2, ["@c:x"])]


def test_json_travels_compact_and_ascii():
    append.add_receipt("!r:x", "m.read", "@d:x", "$e", {"thé": [1, {"a": None}]})
    with session() as cursor:
        lines, _ = read_lines(cursor, registry.get("receipts").declaration, Read("receipts", "master", 0, 9), 16384)
    assert lines.data == b'RDATA receipts master 2 ["!r:x","m.read","@d:x","$e",{"th\\u00e9":[1,{"a":null}]}]\n' + (
        b"POSITION receipts master 2 9\n"
    )


def test_messages_to_devices_are_one_fact_with_a_row_per_recipient():
    token = append.messages_to_devices(["@a:x", "@b:x", "other.example"])
    parsed = wire("to_device")
    assert [command.token for command in parsed] == [None, None, token]
    assert [command.row for command in parsed] == [["@a:x"], ["@b:x"], ["other.example"]]


def test_presence_for_destinations_is_a_row_per_pair():
    token = federation_queue.send_presence(["a.example", "b.example"], ["@u:x", "@v:x"])
    assert [row for _, row in rows("presence_federation")] == [
        ["a.example", "@u:x"], ["a.example", "@v:x"], ["b.example", "@u:x"], ["b.example", "@v:x"],
    ]  # fmt: skip
    assert {number for number, _ in rows("presence_federation")} == {token}


def test_items_for_federation_keep_their_json():
    edu = {"edu_type": "m.typing", "content": {"typing": True}, "origin": "a.example", "destination": "b.example"}
    federation_queue.send_federation([("k", {"key": ["!r:a", "@u:a"], "edu": edu}), ("e", edu)])
    assert [command.row for command in wire("federation")] == [["k", {"key": ["!r:a", "@u:a"], "edu": edu}], ["e", edu]]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: append.set_presence(catalog.Presence(user_id="@u:x", state="asleep")),
        lambda: append.add_receipt("!r", "m.read", "@u", "$e", {"ts": float("nan")}),
        lambda: append.devices_changed([]),
        lambda: federation_queue.send_federation([("x", {})]),
        lambda: federation_queue.send_presence([], ["@u:x"]),
    ],
)
def test_what_cannot_travel_is_refused_by_name(wrong):
    with pytest.raises(UnusableFact):
        wrong()


#: What other servers may send -> calls that get it, for each text column of each stream.
_TEXTS = {
    "presence": [
        lambda text: append.set_presence(catalog.Presence(user_id=text, state="online")),
        lambda text: append.set_presence(catalog.Presence(user_id="@u:x", state="online", status_msg=text)),
    ],
    "receipts": [
        lambda text: append.add_receipt(text, "m.read", "@u:x", "$e", {}),
        lambda text: append.add_receipt("!r:x", text, "@u:x", "$e", {}),
        lambda text: append.add_receipt("!r:x", "m.read", text, "$e", {}),
        lambda text: append.add_receipt("!r:x", "m.read", "@u:x", text, {}),
    ],
    "push_rules": [append.push_rules_changed],
    "pushers": [
        lambda text: append.pusher_changed(text, "app", "key"),
        lambda text: append.pusher_changed("@u:x", text, "key"),
        lambda text: append.pusher_changed("@u:x", "app", text),
    ],
    "device_lists": [lambda text: append.devices_changed(["@u:x", text])],
    "to_device": [lambda text: append.messages_to_devices([text])],
    "tag_account_data": [
        lambda text: append.set_tags(text, "!r:x", {}),
        lambda text: append.set_tags("@u:x", text, {}),
    ],
    "account_data": [
        lambda text: append.account_data_changed(text, "m.direct"),
        lambda text: append.account_data_changed("@u:x", text),
        lambda text: append.account_data_changed("@u:x", "m.direct", text),
    ],
    "groups": [
        lambda text: append.group_changed(text, "@u:x", {}),
        lambda text: append.group_changed("+g:x", text, {}),
    ],
    "user_signature": [append.signatures_changed],
    "typing": [
        lambda text: typing.set_typing(text, "@u:x", True),
        lambda text: typing.set_typing("!r:x", text, True),
        lambda text: typing.set_typing("!r:x", text, False),
    ],
    "presence_federation": [
        lambda text: federation_queue.send_presence([text], ["@u:x"]),
        lambda text: federation_queue.send_presence(["x"], [text]),
    ],
}


@pytest.mark.parametrize(("text", "what"), [("@a\0:x", r"U\+0000"), ("@\ud800:x", "surrogate")])
def test_text_that_cannot_be_stored_is_refused_by_name(text, what):
    """The error was one of the driver, which named neither the stream nor the value."""
    for name, calls in _TEXTS.items():
        for call in calls:
            with pytest.raises(UnusableFact, match=f"^{name}: [a-z_]+ has .*{what}"):
                call(text)
    assert not any(rows(name) for name in _TEXTS)
    append.devices_changed(["@u:x"])
    assert rows("device_lists") == [(rows("device_lists")[0][0], ["@u:x"])]


def test_json_holds_any_text():
    odd = {"a\0\ud800": ["\0", "\udfff", 10**400, -(10**4000)]}
    append.add_receipt("!r:x", "m.read", "@u:x", "$e", odd)
    append.group_changed("+g:x", "@u:x", odd)
    assert [row[-1] for _, row in (*rows("receipts"), *rows("groups"))] == [odd, odd]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (
            lambda: append.set_presence(catalog.Presence(user_id="@u:x", state="online", last_active_ts=10**400)),
            "64 bits",
        ),
        (lambda: append.add_receipt("!r:x", "m.read", "@" + "\u00fc" * 200, "$e", {}), "255"),
        (lambda: append.add_receipt("!r:x", "m.read", "@u:x", "$e", [1]), "object"),
        (lambda: append.add_receipt("!r:x", "m.read", "@u:x", "$e", {"n": 10**5000}), "JSON"),
        (lambda: append.add_receipt("!r:x", "m.read", "@u:x", "$e", {"n": nested(900)}), "deeper"),
        (lambda: typing.set_typing("!" + "r" * 300, "@u:x", True), "255"),
    ],
)
def test_what_no_column_takes_is_refused_by_name(wrong, what):
    with pytest.raises(UnusableFact, match=what):
        wrong()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("text", ["once upon a time", "[1", "9" * 5_000, "NaN", "[" * 5_000 + "]" * 5_000])
def test_a_row_whose_json_cannot_be_read_keeps_readers_from_nothing(text):
    """A writer in SQL may store any text."""
    for data in (text, '{"ts":1}'):
        receipt = catalog.Receipt(room_id="!r:x", receipt_type="m.read", user_id="@u:x", event_id="$e", data=data)
        registry.get("receipts").append(receipt)
    assert [row[-1] for _, row in rows("receipts")] == [None, {"ts": 1}]


def test_only_the_newest_presence_of_a_user_is_kept():
    def presence(user: str, state: str) -> catalog.Presence:
        return catalog.Presence(user_id=user, state=state)

    append.set_presence(presence("@a:x", "online"), presence("@b:x", "online"))
    append.set_presence(presence("@a:x", "offline"), presence("@a:x", "busy"))
    assert [(token, row[0], row[1]) for token, row in rows("presence")] == [(3, "@b:x", "online"), (5, "@a:x", "busy")]


def test_older_row_of_a_user_stays_while_the_newer_is_not_committed():
    from django.db import transaction

    append.set_presence(catalog.Presence(user_id="@a:x", state="online"))
    with pytest.raises(RuntimeError), transaction.atomic():
        append.set_presence(catalog.Presence(user_id="@a:x", state="busy"))
        raise RuntimeError
    assert [row[1] for _, row in rows("presence")] == ["online"]


def test_writers_of_presence_side_by_side_leave_one_row():
    from tests.support.writing import in_thread

    def write() -> None:
        for _ in range(10):
            append.set_presence(catalog.Presence(user_id="@a:x", state="online"))

    threads = [in_thread(write) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert len(rows("presence")) == 1
    assert rows("presence")[0][0] == 41  # forty facts from 2 on


def test_acknowledged_items_are_freed_up_to_the_slowest_sender():
    tokens = [federation_queue.send_federation([("e", {"n": n})]) for n in range(4)]
    for number, sender in ((2, "sender1"), (1, "sender2")):
        FederationAcknowledgement.objects.create(instance_name=sender, token=tokens[number])
    with session() as cursor:
        assert worker_sql.free_acknowledged(cursor) == 2
    assert [token for token, _ in rows("federation")] == tokens[2:]


def test_sender_that_is_long_gone_is_not_waited_for():
    token = federation_queue.send_federation([("e", {})])
    FederationAcknowledgement.objects.create(instance_name="gone", token=0, acknowledged_at="2020-01-01T00:00Z")
    with session() as cursor:
        assert worker_sql.free_acknowledged(cursor) == 0
        FederationAcknowledgement.objects.create(instance_name="here", token=token)
        assert worker_sql.free_acknowledged(cursor) == 1


def test_old_rows_of_the_queues_are_freed():
    federation_queue.send_presence(["a.example"], ["@u:x"])
    with session() as cursor:
        cursor.execute("UPDATE streams_presencefederation SET received_at = now() - interval '6 minutes'")
    federation_queue.send_presence(["a.example"], ["@v:x"])
    freeing.free_old("presence_federation")
    assert [row for _, row in rows("presence_federation")] == [["a.example", "@v:x"]]


def test_linear_position_of_a_stream_of_the_catalog_follows_its_facts():
    token = append.push_rules_changed("@c:x")
    wait_for_linear_of("push_rules", token)


def wait_for_linear_of(name: str, token: int) -> None:
    from tests.support.waiting import wait_until
    from tests.support.writing import linear

    wait_until(lambda: linear(name) >= token, what=f"{name} at {token}; stored: {stored(name)}")
