"""Bytes that are no text, stored before the table refused them: the migration makes text of them, and a restore does, too."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from django.core.management import call_command
from django.db import DataError, connection
from django.db.migrations.executor import MigrationExecutor

from events.integrity.repair import check_room
from events.models import EventJson
from events.persist.room_cache import clear_caches
from events.reading.pages import timeline_of
from tests.support.made_rooms import ALICE, public_room
from tests.support.persisted_rooms import incoming, persist
from tests.support.syncing import first

pytestmark = pytest.mark.django_db(transaction=True)
CONSTRAINT = import_module("migrations.events.0020_json_is_utf8").Migration.operations[0]
DAMAGE = [
    b'{"content":{"body":"caf\xe9"}}',
    b'{"content":{"body":"\x00"}}',
    b"\xff\xfe{\x00}\x00",
    b'{"a":"\\\xe9\\\\"}',
]


@pytest.fixture(autouse=True)
def _forget():
    clear_caches()
    yield
    clear_caches()


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for one in statements:
            cursor.execute(one)


def migrate(targets):
    MigrationExecutor(connection).migrate(targets)


def damaged_room():
    """A room whose messages were stored with these bytes; the database is as before the last migration."""
    made, whole = public_room("5", "!damaged:a.test"), public_room("5", "!whole:a.test")
    said = [made.message() for _ in DAMAGE]
    assert not persist([incoming(event) for event in (*made.events, *whole.events)]).refused
    migrate([("events", "0021_holds")])
    run(CONSTRAINT.reverse_sql)
    for event, damage in zip(said, DAMAGE, strict=True):
        EventJson.objects.filter(event_id=event.event_id).update(json=damage)
    run(CONSTRAINT.sql)
    clear_caches()
    return made, whole, [event.event_id for event in said]


def test_rows_of_before_keep_nobody_from_other_events_after_the_upgrade():
    made, whole, said = damaged_room()
    with pytest.raises(DataError):
        first(ALICE)
    migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())
    rooms = {room.room_id: room for room in first(ALICE).rooms}
    assert rooms.keys() == {made.room_id, whole.room_id}
    told = {event.event_id: event.client_event() for event in rooms[made.room_id].timeline}
    assert [(told[one]["content"], told[one]["sender"]) for one in said] == [({}, ALICE)] * len(said)
    assert len(timeline_of(ALICE, made.room_id)) == len(made.events)
    assert {found.table for found in check_room(made.room_id).differences} == {"events_eventjson"}
    assert check_room(whole.room_id).clean
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT decode(convert_from(json, 'UTF8'), 'escape') FROM events_eventjson WHERE event_id = ANY(%s)", [said]
        )
        assert sorted(bytes(row[0]) for row in cursor.fetchall()) == sorted(DAMAGE)
        cursor.execute("SELECT convalidated FROM pg_constraint WHERE conname = 'events_eventjson_utf8'")
        assert cursor.fetchone()[0]


def test_an_archive_of_before_is_restored(tmp_path):
    made, whole, said = damaged_room()
    folder = tmp_path / "archive"
    try:
        call_command(
            "purge",
            "room",
            made.room_id,
            "--archive",
            str(folder),
            "--force",
            "--yes",
            stdout=io.StringIO(),
            stderr=io.StringIO(),
        )
    finally:
        migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())
    clear_caches()
    assert [room.room_id for room in first(ALICE).rooms] == [whole.room_id]
    (archive,) = folder.rglob("manifest.json")
    call_command("room", "restore", str(archive.parent), stdout=io.StringIO(), stderr=io.StringIO())
    clear_caches()
    assert {room.room_id for room in first(ALICE).rooms} == {made.room_id, whole.room_id}
    assert EventJson.objects.filter(event_id__in=said).count() == len(said)
    assert {found.table for found in check_room(made.room_id).differences} == {"events_eventjson"}
