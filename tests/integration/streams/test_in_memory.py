"""Streams in memory: a crash of the server empties their tables, and they go on behind it."""

from __future__ import annotations

import pytest
from django.db import connection

from streams import registry
from streams.catalog.models import TypingUser
from streams.errors import UnusableFact
from streams.homeserver import federation_queue, typing
from streams.load_generator import generator
from streams.replication.common import worker_sql
from streams.workers import federation_acknowledged
from tests.integration.streams.test_catalog import _sequences_as_after_migrate, rows
from tests.support.waiting import wait_until
from tests.support.writing import linear, session

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["_sequences_as_after_migrate"]  # the fixture

IN_MEMORY = ["presence_federation", "typing", "federation"]


def test_which_streams_are_in_memory():
    assert [stream.name for stream in registry.all_streams() if stream.declaration.in_memory] == IN_MEMORY


@pytest.mark.parametrize("name", IN_MEMORY)
def test_their_tables_are_unlogged(name):
    (table,) = registry.get(name).declaration.tables
    with connection.cursor() as cursor:
        cursor.execute("SELECT relpersistence FROM pg_class WHERE relname = %s", [table.name])
        assert cursor.fetchone()[0] == "u"


def test_acknowledgement_of_the_last_life_frees_nothing_of_the_new_one():
    """It came late: the sender says its last word again when it connects, or a server had not written it down yet."""
    federation_queue.send_federation([("e", {})])
    wait_until(lambda: linear("federation") == 1)
    with session() as cursor:
        worker_sql.store_acknowledgements(cursor, {"sender": 500})
        assert worker_sql.free_acknowledged(cursor) == 0
    assert federation_acknowledged() == {"sender": 0}


# --- typing -------------------------------------------------------------------------------------------------------


def lists() -> list[tuple[str, list[str]]]:
    return [(row[0], row[1]) for _, row in rows("typing")]


def test_row_is_the_full_list_in_the_order_in_which_they_began():
    typing.set_typing("!r:x", "@b:x", True)
    typing.set_typing("!r:x", "@a:x", True)
    typing.set_typing("!r:x", "@b:x", False)
    typing.set_typing("!r:x", "@a:x", False)
    assert [users for _, users in lists()] == [["@b:x"], ["@b:x", "@a:x"], ["@a:x"], []]


def test_saying_it_again_writes_nothing():
    assert typing.set_typing("!r:x", "@b:x", True) == 1
    assert typing.set_typing("!r:x", "@b:x", True) is None
    assert typing.set_typing("!r:x", "@c:x", False) is None
    assert len(lists()) == 1


def test_rooms_are_apart():
    typing.set_typing("!r:x", "@b:x", True)
    typing.set_typing("!s:x", "@b:x", True)
    assert lists() == [("!r:x", ["@b:x"]), ("!s:x", ["@b:x"])]


def test_somebody_who_says_nothing_more_is_taken_off():
    typing.set_typing("!r:x", "@b:x", True, timeout_seconds=0.2)
    wait_until(lambda: lists()[-1] == ("!r:x", []))
    assert not TypingUser.objects.filter(room_id="!r:x").exists()


def test_entry_of_another_process_is_taken_off_too():
    typing.set_typing("!r:x", "@b:x", True)
    typing.stop_expiry()
    TypingUser.objects.update(until="2020-01-01T00:00Z")
    assert typing.expire_typing() == 1
    assert typing.expire_typing() == 0
    assert lists()[-1] == ("!r:x", [])


@pytest.mark.parametrize("seconds", [0, -1, 121, float("nan")])
def test_odd_timeouts_are_refused(seconds):
    with pytest.raises(UnusableFact, match="time-out"):
        typing.set_typing("!r:x", "@b:x", True, timeout_seconds=seconds)


def test_crash_of_the_database_leaves_a_stream_that_goes_on():
    """What a crash does to an UNLOGGED table: it is empty, while positions and sequence stay."""
    generator("typing", 0).append(3)
    wait_until(lambda: linear("typing") == 3)
    with session() as cursor:
        cursor.execute("SET LOCAL streams.maintenance = on; TRUNCATE streams_typing, streams_typinguser")
    assert generator("typing", 0).append(1) == [4]
    assert linear("typing") == 4
