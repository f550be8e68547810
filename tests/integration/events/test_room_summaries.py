"""The narrow row of each room is right, whatever program wrote: checked against the tables themselves."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from events.integrity.repair import resync_room
from events.models import CurrentState, Event, EventJson, RoomSummary
from tests.integration.events.test_purging import middle, talked_room
from tests.integration.pipeline.test_archive import purge
from tests.integration.pipeline.test_restore import restore
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.stored_rooms import store_room
from tests.support.summaries import assert_right, expected

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _server(settings):
    settings.REPLSITE_SERVER_NAME = "nobody.test"


def test_rows_follow_each_stored_event():
    made = public_room()
    made.state("m.room.name", "", {"name": " The Lobby "})
    made.state("m.room.canonical_alias", "", {"alias": "#Lobby:a.test"})
    made.member(BOB, "join")
    made.message(sender=BOB)
    made.member(EVE, "invite", sender=ALICE)
    made.member(BOB, "leave")
    made.state("m.room.name", "", {"name": ""})
    for event in made.events:
        persist([incoming(event)])
        assert_right()
    row = RoomSummary.objects.get()
    assert (row.name, row.alias, row.joined, row.invited) == (None, "#Lobby:a.test", 1, 1)
    assert row.events == len(made.events) and row.active_at.year == 2023


def test_rows_of_several_rooms_follow_one_batch():
    rooms = [talked_room(3, f"!{name}:a.test") for name in "abc"]
    for made in rooms:
        made.state("m.room.name", "", {"name": made.room_id[1]})
        made.message()
    persist([incoming(event) for made in rooms for event in made.events[-2:]])
    assert_right()
    assert sorted(RoomSummary.objects.values_list("name", flat=True)) == ["a", "b", "c"]


def test_a_redacted_name_is_gone_and_the_alias_stays():
    made = public_room()
    name = made.state("m.room.name", "", {"name": "a secret"})
    made.state("m.room.canonical_alias", "", {"alias": "#open:a.test"})
    persist_all(made.events)
    assert RoomSummary.objects.get().name == "a secret"
    persist([incoming(made.redaction(name))])
    assert_right()
    row = RoomSummary.objects.get()
    assert (row.name, row.alias, "secret" in row.words) == (None, "#open:a.test", False)


def test_a_redaction_that_came_before_its_target_counts():
    made = public_room()
    name = made.state("m.room.name", "", {"name": "a secret"})
    made.redaction(name)
    store_room(made.events)
    Event.objects.writable().filter(event_id=name.event_id).update(redacted_by=made.events[-1].event_id)
    assert_right()
    assert RoomSummary.objects.get().name is None


@pytest.mark.parametrize(
    "name, stored",
    [
        ("a\0b", "a\ufffdb"),
        ("a\u202eb <script>", "a\u202eb <script>"),
        ("x" * 400, "x" * 255),
        (["no text"], None),
        (5, None),
        (None, None),
        ("  ", None),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_hostile_names_are_stored_as_text_or_not_at_all(name, stored):
    made = MadeRoom()
    made.state("m.room.name", "", {"name": name, "more": "\0"})
    store_room(made.events)
    assert RoomSummary.objects.get().name == stored


@pytest.mark.parametrize("raw", [b'{"content":{"name":"\\ud800x"}}', b"{", b"[" * 20_000, b"[]", b'{"content":5}'])
def test_bytes_that_give_no_name_leave_none(raw):
    made = MadeRoom()
    name = made.state("m.room.name", "", {"name": "n"})
    store_room(made.events)
    EventJson.objects.filter(event_id=name.event_id).update(json=raw)
    with connection.cursor() as cursor:
        cursor.execute("SELECT events_name_rooms(ARRAY[%s])", [made.room_id])
    assert RoomSummary.objects.get().name is None


@pytest.mark.parametrize("claimed", [0, -5, 2**62, -(2**62), 2**53])
def test_any_time_may_be_claimed(claimed):
    made = MadeRoom()
    made.send({"type": "m.x", "origin_server_ts": 5})
    store_room(made.events)
    copied = Event.read.order_by("stream_ordering").last()
    Event._base_manager.writable().bulk_create(
        [Event(stream_ordering=9_999, instance_name="w", event_id="$new", room_id=made.room_id, type="m.x",
               sender=ALICE, topological_ordering=9, origin_server_ts=claimed, state_group=copied.state_group)]
    )  # fmt: skip
    assert_right()


def test_purged_history_counts_less_and_a_restore_brings_it_back(tmp_path):
    made = talked_room(12)
    made.state("m.room.name", "", {"name": "Kept"})
    persist([incoming(made.events[-1])])
    before = expected(made.room_id)
    outcome = purge(
        "history", made.room_id, "--before-token", f"t{middle(made.room_id, 0.7)}-0", "--archive", str(tmp_path)
    )
    assert RoomSummary.objects.get().events < before["events"]
    assert_right()
    restore(outcome["archive"]["folder"])
    assert_right()
    assert RoomSummary.objects.get().events == before["events"]


def test_a_purged_room_has_no_row_and_a_restore_brings_it_back(tmp_path):
    made = talked_room(12)
    made.state("m.room.name", "", {"name": "Kept"})
    persist([incoming(made.events[-1])])
    other = talked_room(2, "!other:a.test")
    before = RoomSummary.objects.filter(pk=made.room_id).values().get()
    outcome = purge("room", made.room_id, "--force", "--archive", str(tmp_path))
    assert list(RoomSummary.objects.values_list("room_id", flat=True)) == [other.room_id]
    restore(outcome["archive"]["folder"])
    assert_right()
    assert RoomSummary.objects.filter(pk=made.room_id).values().get() == before


def test_a_repair_of_the_room_computes_its_row_again():
    made = talked_room(3)
    made.state("m.room.name", "", {"name": "Right"})
    persist([incoming(made.events[-1])])
    CurrentState.objects.filter(room_id=made.room_id, type="m.room.name").delete()
    assert RoomSummary.objects.get().name is None
    RoomSummary.objects.update(events=99, joined=99)
    resync_room(made.room_id, "state")
    assert_right()
    assert RoomSummary.objects.get().name == "Right"


def test_rooms_from_before_get_their_rows():
    for name in "abc":
        made = talked_room(3, f"!{name}:a.test")
        made.state("m.room.name", "", {"name": name})
        persist([incoming(made.events[-1])])
    RoomSummary.objects.filter(room_id__lt="!c").delete()
    migration = import_module("migrations.events.0015_summaries_of_stored_rooms")
    migration.summarize(None, type("Editor", (), {"connection": connection}))
    assert_right()


def test_the_migrations_go_back_and_forth():
    talked_room(3)
    try:
        call_command("migrate", "events", "0012", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'events_event_%'")
            assert cursor.fetchone() == (0,)
    finally:
        call_command("migrate", verbosity=0)
    assert_right()


def updated(cursor):
    """Updates of summaries in this session that are in no statistics yet: all, and the heap-only ones."""
    cursor.execute(
        "SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid) FROM pg_class "
        "WHERE relname = 'events_roomsummary'"
    )
    return cursor.fetchone()


def test_a_message_changes_no_index_of_the_row():
    """A heap-only update: the room's row changes with every message, its indexes with few."""
    made = talked_room(21)  # 25 events: the 26th does not change ``size``
    made.message()
    with transaction.atomic(), connection.cursor() as cursor:
        before = updated(cursor)
        persist([incoming(made.events[-1])])
        after = updated(cursor)
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)
