"""Many rows of a table are copied, few are inserted: what is stored is the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from events.columns import EVENT_COLUMNS
from events.rows import FEWEST_COPIED, RoomRows, write
from streams.holds.maintenance import changing_facts

pytestmark = pytest.mark.django_db

NASTY = "a\tb\nc\rd\\N\\.\\\\ \x01é\U0001f600"
SOME_TIME = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


def written(table, columns, rows, **more):
    """What is in a table after these rows were written."""
    changes = RoomRows()
    for row in rows:
        changes.add(table, *row, **more)
    with changing_facts(connection), connection.cursor() as cursor:
        write(cursor, changes)
        cursor.execute(f"SELECT {', '.join([*columns, *more])} FROM {table} ORDER BY {columns[0]}")
        return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in cursor.fetchall()]


@pytest.mark.parametrize("count", [FEWEST_COPIED - 1, FEWEST_COPIED, 2_100])
@pytest.mark.parametrize(
    ("table", "columns", "value"),
    [
        ("events_eventauth", ("event_id", "auth_event_ids"), ([],)),
        ("events_eventauth", ("event_id", "auth_event_ids"), (["$a", '"', NASTY, "NULL", "", "{,}"],)),
        ("events_eventjson", ("event_id", "room_version", "json"), ("10", NASTY.encode())),
        ("events_forwardextremity", ("event_id", "room_id"), (NASTY,)),
        ("events_currentstatedelta", ("stream_ordering", "instance_name", "room_id", "type", "state_key", "event_id",
                                      "prev_event_id"), ("w", "!r", "t", "", None, "$p")),
        ("events_event", ("stream_ordering", "instance_name", *EVENT_COLUMNS),
         ("w", "$e", "!r", "t", None, "@a", 2**63 - 1, -1, None, None, None, False, "no", True, None, False, 7)),
        ("state_stategroup", ("id", "room_id", "prev_group", "chain", "hops", "keys", "rows_to_read"),
         ("!r", None, 1, 2**15 - 1, 2**31 - 1, 0)),
    ],
)  # fmt: skip
def test_rows_are_stored_as_they_are(table, columns, value, count):
    keys = [f"${number:05}" for number in range(count)]
    if columns[0].endswith("_id"):
        rows = [(key, *value) for key in keys]
    else:
        rows = [(place, *(key if part == "$e" else part for part in value)) for place, key in enumerate(keys, 1)]
    assert written(table, columns, rows) == rows


def test_times_are_stored_as_they_are():
    columns = ("stream_ordering", "instance_name", "room_id", "type", "state_key", "event_id", "prev_event_id")
    rows = [(number, "w", "!r", "t", "", None, None) for number in range(1, FEWEST_COPIED + 1)]
    expected = [(*row, SOME_TIME) for row in rows]
    assert written("events_currentstatedelta", columns, rows, received_at=SOME_TIME) == expected


def test_a_row_that_is_stored_already_is_an_error_of_django():
    rows = [(f"${number}", "!r") for number in range(FEWEST_COPIED)]
    written("events_forwardextremity", ("event_id", "room_id"), rows)
    with pytest.raises(IntegrityError), transaction.atomic():
        written("events_forwardextremity", ("event_id", "room_id"), rows)


def test_values_of_another_type_are_refused():
    with pytest.raises((AttributeError, DatabaseError), match="no attribute 'encode'"):  # of psycopg 3, or of psycopg2
        written("events_forwardextremity", ("event_id", "room_id"), [(object(), "!r")] * FEWEST_COPIED)
