"""Changes of rooms' rows become statements in one order, and few modules have SQL that writes a room's tables."""

import re

import pytest

from events.rows import RoomRows
from tests.support.session import PROJECT

ROOM = "!room:a.test"
TABLES = (
    "events_room", "events_event", "events_eventjson", "events_eventedge", "events_eventauth", "events_forwardextremity",
    "events_backwardextremity", "events_timelinegap", "events_currentstate", "events_currentstatedelta",
    "events_eventvisibility", "state_stategroup", "state_stategroupdelta",
)  # fmt: skip
#: Everything else that writes a room builds ``RoomRows``, or copies the columns of new rooms (``pipeline.loading``).
WRITERS = {
    "events/maintenance/group_gc.py": "groups that no event needs",
    "events/maintenance/purge_batch.py": "sets of events by depth, which stay in the database",
    "events/operations/purge_room.py": "all rows of a room, some thousand at a time",
    "events/rows.py": "all others",
}


def texts(rows):
    return [" ".join(text.split()) for text, _, _ in (*rows.before_facts(), *rows.after_facts())]


def test_message_on_top_of_an_extremity():
    rows = RoomRows()
    rows.add("events_eventjson", "$b", "10", b"{}")
    rows.add("events_eventedge", "$b", "$a")
    rows.change("events_forwardextremity", "$a", event_id="$b")
    ((change, values, again),) = rows.before_facts()
    assert change == (
        "UPDATE events_forwardextremity stored SET event_id = given.new_event_id FROM unnest(%s::text[], %s::text[]) AS given "
        "(event_id, new_event_id) WHERE stored.event_id = given.event_id"
    )
    assert (values, again) == ([["$a"], ["$b"]], True)
    assert [*rows.after_facts()] == [
        ("INSERT INTO events_eventjson (event_id, room_version, json) VALUES (%s, %s, %s)", ["$b", "10", b"{}"], True),
        ("INSERT INTO events_eventedge (event_id, prev_event_id) VALUES (%s, %s)", ["$b", "$a"], True),
    ]


def test_order_of_changes():
    rows = RoomRows()
    rows.add("events_currentstate", ROOM, "m.room.topic", "", "$b", None)
    rows.add("events_eventedge", "$b", "$a")
    rows.show(["$r"])
    rows.change("events_room", ROOM, visibility_unresolved=False)
    rows.remove("events_currentstate", (ROOM, "m.room.name", ""))
    rows.remove("events_event", ("$o",))
    rows.clear(ROOM, "events_eventvisibility")
    starts = (
        "DELETE FROM events_eventvisibility",
        "DELETE FROM events_currentstate stored USING unnest",
        "DELETE FROM events_event",
    )
    starts += ("UPDATE events_room", "DELETE FROM events_eventvisibility v USING", "INSERT INTO events_eventedge")
    found = texts(rows)
    assert all(text.startswith(start) for text, start in zip(found, starts, strict=False)), found
    assert "ON CONFLICT (room_id, type, state_key) DO UPDATE SET event_id = excluded.event_id" in found[-1]


def test_many_rows_are_divided_and_are_one_statement_whatever_their_number():
    rows = RoomRows()
    for number in range(2_001):
        rows.add("events_eventedge", f"${number}", "$a")
    (first, values, again), second, (single, *_) = rows.after_facts()
    assert [len(column) for column in values] == [1_000, 1_000]
    assert again and second[0] == first != single


def test_added_rows_may_have_further_columns():
    rows = RoomRows()
    rows.add("events_timelinegap", ROOM, 5, "a", received_at=None)
    ((text, values, _),) = rows.after_facts()
    assert text == (
        "INSERT INTO events_timelinegap (room_id, stream_ordering, instance_name, received_at) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (room_id, stream_ordering) DO NOTHING"
    )
    assert values == [ROOM, 5, "a", None]


def test_nothing_is_removed_by_no_key():
    rows = RoomRows()
    rows.remove("events_event")
    assert texts(rows) == []


@pytest.mark.parametrize("column", ["event_id = '' --", "nothing", "room_id"])
def test_only_columns_of_the_table_are_changed(column):
    rows = RoomRows()
    rows.change("events_eventjson", "$a", **{column: 1})
    with pytest.raises(AssertionError, match="has no columns"):
        texts(rows)


def test_few_modules_have_sql_that_writes_a_room():
    writes = re.compile(rf"\b(INSERT INTO|UPDATE|DELETE FROM|COPY)\s+({'|'.join(TABLES)})\b|INSERT_INTO\[")
    files = (
        path for package in ("events", "pipeline", "state", "replsite") for path in (PROJECT / package).rglob("*.py")
    )
    found = {path.relative_to(PROJECT).as_posix() for path in files if writes.search(path.read_text())}
    assert found == WRITERS.keys()
