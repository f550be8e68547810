"""The streams of room events as they travel."""

from events.declarations import BACKFILL, EVENTS, declarations
from streams.core.declaration import ColumnKind


def test_new_event_row():
    row = EVENTS.tables[0].row(["$e", "!r", "m.room.member", "@u", None, "$t", "join", None])
    assert row == ["ev", ["$e", "!r", "m.room.member", "@u", None, "$t", "join", False]]


def test_rejected_event_says_so_without_the_reason():
    assert EVENTS.tables[0].row(["$e", "!r", "m.x", None, None, None, None, "auth"])[1][-1] is True


def test_state_row_may_remove_an_entry():
    assert EVENTS.tables[1].row(["!r", "m.x", "", None]) == ["state", ["!r", "m.x", "", None]]


def test_backfill_row_is_plain():
    row = BACKFILL.tables[0].row(("$e", "!r", "m.x", None, None, None))
    assert row == ["$e", "!r", "m.x", None, None, None]


def test_backfill_is_the_backward_half_of_the_event_table():
    assert [d.backward for d in declarations()] == [False, True]
    assert EVENTS.tables[0].name == BACKFILL.tables[0].name
    assert (EVENTS.tables[0].where, BACKFILL.tables[0].where) == ("stream_ordering > 0", "stream_ordering < 0")


def test_every_column_is_text_and_says_whether_it_may_be_null():
    columns = {column.name: column for table in EVENTS.tables for column in table.columns}
    assert {column.kind for column in columns.values()} == {ColumnKind.TEXT}
    nullable = {name for name, column in columns.items() if column.nullable}
    assert nullable >= {"redacts", "relates_to", "membership", "rejected_reason"}
