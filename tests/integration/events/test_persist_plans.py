"""Storing an event reads no table whole, even while the plans are those of small tables; the caller's settings stay."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from events.sending.send import create_room
from tests.support.emptying import empty_tables
from tests.support.made_rooms import public_room
from tests.support.persisted_rooms import incoming, persist

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = ["events_event", "events_eventjson", "events_eventedge", "state_stategroup"]


def whole_reads() -> int:
    """How often these tables were read whole since the statistics began."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT sum(seq_scan)::int FROM pg_stat_user_tables WHERE relname = ANY(%s)", [TABLES])
        return int(cursor.fetchone()[0])


def entries_read() -> int:
    """How many entries of indexes of these tables were read since the statistics began."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes WHERE relname = ANY(%s)", [TABLES])
        return int(cursor.fetchone()[0])


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_seqscan")
        return str(cursor.fetchone()[0])


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def test_messages_of_other_servers_are_stored_by_index():
    empty_tables()
    made = public_room()
    persist([incoming(event) for event in made.events])
    analyze()
    before = whole_reads()
    for _ in range(5):
        persist([incoming(made.message())])
    assert whole_reads() == before
    assert setting() == "on"


@pytest.mark.parametrize("first", [0, 100])
@pytest.mark.parametrize("branches", [1, 2])
def test_an_event_reads_as_much_in_a_large_room(first, branches):
    empty_tables()
    with connection.cursor() as cursor:  # as on a new site
        cursor.execute("DELETE FROM pg_statistic WHERE starelid::regclass::text = ANY(%s)", [TABLES])
    connection.close()  # with the plans of the tests before
    made = public_room()
    persist([incoming(event) for event in (*made.events, *(made.message() for _ in range(first)))])

    def entries_for_a_merge() -> int:
        base = made.events[-1]
        sides = [made.state("m.room.topic", "", {"topic": str(side)}, prev=[base]) for side in range(branches)]
        persist([incoming(event) for event in sides])
        merge = made.message(prev=sides)
        before = entries_read()
        persist([incoming(merge)])
        return entries_read() - before

    few = [entries_for_a_merge() for _ in range(10)]
    for _ in range(3):
        persist([incoming(made.message()) for _ in range(100)])
    assert entries_for_a_merge() <= 2 * max(few), few


def test_messages_of_our_users_are_stored_by_index():
    empty_tables()
    room = create_room("@ann:site")
    room.send("@ann:site", "m.room.message", {"body": "one"})
    analyze()
    before = whole_reads()
    for number in range(5):
        room.send("@ann:site", "m.room.message", {"body": str(number)})
    assert whole_reads() == before
    assert setting() == "on"


def test_a_callers_transaction_keeps_its_settings():
    made = public_room()
    with transaction.atomic():
        persist([incoming(event) for event in made.events])
        assert setting() == "on"
    with transaction.atomic():
        create_room("@ann:site").send("@ann:site", "m.room.message", {"body": "one"})
        assert setting() == "on"
