"""Tables for terminals."""

from __future__ import annotations

from replsite.dashboard.page import live_page_data
from replsite.live_rows.readers import READERS
from replsite.live_rows.streams import STREAMS
from replsite.terminal.tables import lines_of
from tests.support.snapshots import NOW, a_holder, a_reader, a_snapshot, a_stream, a_writer


def test_lines_are_aligned_and_members_indented():
    page = live_page_data(a_snapshot(a_stream(a_writer("web-1"), a_writer("longer-name-2"))))
    head, stream, *writers = lines_of(STREAMS.columns, page["streams"], NOW)
    assert head.startswith("Stream and writer")
    assert stream.startswith("events")
    assert [line.split()[0] for line in writers] == ["web-1", "longer-name-2"]
    assert {line.index("writing") for line in (stream, *writers)} == {head.index("Status")}


def test_ages_are_counted_from_the_snapshot():
    page = live_page_data(a_snapshot(a_stream(a_writer())))
    assert "5.0 s ago" in lines_of(STREAMS.columns, page["streams"], NOW)[2]


def test_what_lasts_says_for_how_long():
    page = live_page_data(a_snapshot(a_stream(a_writer(), holders=(a_holder(90),))))
    stream, holder = lines_of(STREAMS.columns, page["streams"], NOW)[1:3]
    assert "1 (for 1 min 30 s)" in stream
    assert "session 81 (app · web · 10.0.0.1 · idle in transaction)" in holder
    assert "manage.py streams abort events" in holder


def test_names_cannot_steer_the_terminal():
    page = live_page_data(a_snapshot(a_reader("\x1b[2J\nowned\x9b")))
    lines = lines_of(READERS.columns, page["readers"], NOW)
    assert len(lines) == 3
    assert "\\x1b[2J\\nowned\\x9b" in lines[1]
