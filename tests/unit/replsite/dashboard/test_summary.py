"""The figures at the top of the page."""

from __future__ import annotations

from replsite.dashboard.summary import summary_tiles
from tests.support.snapshots import (
    STUCK,
    a_holder,
    a_reader,
    a_snapshot,
    a_stream,
    a_writer,
    ago,
    on_stream,
    some_storage,
)


def tiles(*parts, **changes):
    return {tile["title"]: tile for tile in summary_tiles(a_snapshot(*parts, **changes))}


def said(tile):
    return tile["cell"]["text"], tile["cell"].get("sub", ""), tile["severity"]


def test_quiet_site_is_all_fine():
    found = tiles(a_stream(a_writer()), a_reader())
    assert said(found["Writers"]) == ("1", "1 writing", "fine")
    assert said(found["Open appends"]) == ("0", "nothing waits", "fine")
    assert said(found["Readers"]) == ("1", "all are fine", "fine")
    assert said(found["Highest lag"]) == ("0 s", "everything is read", "fine")
    assert "Database" not in found


def test_a_writer_of_two_streams_counts_once():
    found = tiles(a_stream(a_writer("w")), a_stream(a_writer("w", "caches"), name="caches"))
    assert said(found["Writers"])[0] == "1"


def test_facts_are_those_of_all_streams_with_their_last_minutes():
    one = a_stream(a_writer(facts_per_second=10.0), recent=(1.0, None))
    two = a_stream(a_writer(facts_per_second=5.0), name="caches", recent=(2.0, 4.0))
    cell = tiles(one, two)["Facts"]["cell"]
    assert (cell["text"], cell["series"]) == ("15/s", [3.0, 4.0])


def test_open_appends_tell_since_when_and_are_bad_when_they_block():
    tile = tiles(a_stream(a_writer(), holders=(a_holder(2), a_holder(40))))["Open appends"]
    assert said(tile) == ("2", "oldest", "wrong")
    assert tile["cell"]["since"] == ago(40).isoformat()


def test_lag_is_that_of_the_reader_furthest_behind():
    found = tiles(a_reader("a"), a_reader("b", on_stream(lag_facts=500, lag_seconds=75.0, status=STUCK)))
    assert said(found["Highest lag"]) == ("1 min 15 s", "500 facts of b", "wrong")
    assert said(found["Readers"]) == ("2", "1 reader to look at", "wrong")


def test_closed_readers_and_retired_writers_do_not_count():
    found = tiles(a_stream(a_writer(state="retired")), a_reader(closed_at=ago(1)))
    assert (said(found["Writers"])[0], said(found["Readers"])[0]) == ("0", "0")


def test_database_shows_its_growth():
    assert said(tiles(storage=some_storage())["Database"])[:2] == ("5.0 MB", "+1.0 MB in a day")
