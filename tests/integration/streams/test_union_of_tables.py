"""The stream ``events`` is a union of two tables: whoever reads a stream reads both."""

from __future__ import annotations

import pytest

from events.models import CurrentStateDelta
from streams import registry
from streams.load_generator import generator
from streams.maintenance import check
from streams.reading.rows import rows_between
from streams.replication.client.table_catch_up import TableCatchUp
from streams.testing import forget_writers
from tests.support.writing import session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def events():
    return registry.get("events")


def change_of_state(events) -> int:
    """A fact that has a row in the second table only."""
    with events.reserve() as reservation:
        reservation.write(
            CurrentStateDelta(room_id="!r:x", type="m.x", state_key="", event_id=None, prev_event_id=None)
        )
        return reservation.ids[0]


def test_rows_of_one_token_come_in_the_order_of_the_tables(events):
    ids = generator("events", 0).append(4)
    last = change_of_state(events)
    with session() as cursor:
        rows, reached = rows_between(cursor, events.declaration, None, 0, last, 100)
    kinds = [(row.token, row.row[0]) for row in rows]
    # The first three set the room up, so each is an event and a change of state.
    assert kinds == [(n, kind) for n in ids[:3] for kind in ("ev", "state")] + [(ids[3], "ev"), (last, "state")]
    assert reached == last


def test_start_up_reads_both(events):
    generator("events", 0).append(1)
    last = change_of_state(events)
    with session() as cursor:
        assert events.table_maximum(cursor) == last
    assert generator("events", 0).append(1)[0] > last


def test_repair_reads_both(events):
    last = change_of_state(events)
    forget_writers()
    with session() as cursor:
        cursor.execute("DELETE FROM streams_streamposition")
        cursor.execute(f"SELECT setval('{events.declaration.sequence}', 1)")
        (found,) = [found for found in check.inspect_streams(cursor) if found.stream == "events"]
        assert (found.verdict, found.highest_in_tables) == ("sequence behind table", last)
        assert check.repair(cursor, events) == last


async def test_catch_up_reads_both(events):
    import asyncio

    from django.db import connections

    def write() -> tuple[int, int]:
        try:
            return generator("events", 0).append(1)[0], change_of_state(events)
        finally:
            connections.close_all()

    first, last = await asyncio.to_thread(write)
    source = TableCatchUp("default", "test")
    rows, reached = await source.fetch("events", "master", first - 1, last, 100)
    await source.close()
    assert [(row.token, row.row[0]) for row in rows] == [(first, "ev"), (first, "state"), (last, "state")]
    assert reached == last
