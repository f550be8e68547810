"""How the queries of syncs are planned: a large room among small ones is read by the order of an index."""

from __future__ import annotations

import pytest
from django.db import connection

from events.sending.send import NewEvent, create_room
from events.sync.sql import rows
from tests.support.emptying import empty_tables
from tests.support.syncing import first, here, since

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "@ann:site"


@pytest.fixture
def plans():
    """Plans of the timelines that were read meanwhile."""
    found = []

    def explain(execute, sql, params, many, context):
        before, _, statement = sql.partition("; ")
        if before.startswith("SET LOCAL enable_bitmapscan") and statement.startswith("EXECUTE"):
            with connection.connection.cursor() as cursor:
                cursor.execute(f"{before}; EXPLAIN {statement}", params)
                found.append("\n".join(line for (line,) in cursor.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


@pytest.fixture
def rooms():
    empty_tables()  # pages of rows that other tests rolled back would make the planner choose another plan
    large = create_room(ANN)
    for _ in range(5):
        create_room(ANN)
    large.add([NewEvent(ANN, "m.room.message", {"body": str(n)}) for n in range(500)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return large


def test_the_first_answer_reads_each_room_from_its_top(rooms, plans):
    assert len(first(ANN, events=5).rooms) == 6
    assert "events_event_timeline" in plans[0]
    assert "Bitmap" not in plans[0]


def test_what_is_new_is_read_by_position(rooms, plans):
    token = here()
    rooms.send(ANN, "m.room.message", {"body": "new"})
    assert since(ANN, token, limit=5)
    assert "events_event_room_stream" in plans[0]
    assert "Bitmap" not in plans[0]


def test_a_query_is_planned_once_in_a_session():
    text = "SELECT %(a)s::int + %(b)s::int AS planned_once"
    assert rows(text, {"a": 1, "b": 2}, "default") == rows(text, {"a": 2, "b": 1}, "default") == [(3,)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%planned_once%'")
        assert cursor.fetchone() == (1,)
