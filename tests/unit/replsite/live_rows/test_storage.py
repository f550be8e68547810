"""Storage and rooms as tables."""

from __future__ import annotations

from replsite.dashboard.fragments import render
from replsite.dashboard.page import live_page_data
from replsite.live_rows.storage import ROOMS, STORAGE, room_groups, storage_groups
from tests.support.snapshots import a_snapshot, ago, some_storage


def cells(row):
    return [(cell["text"], cell.get("sub", "")) for cell in row["cells"]]


def test_every_line_has_a_cell_for_every_column():
    for table, groups in ((STORAGE, storage_groups(some_storage())), (ROOMS, room_groups(some_storage().rooms))):
        assert {len(row["cells"]) for group in groups for row in (group["head"], *group["rows"])} == {
            len(table.columns)
        }


def test_database_shows_its_size_its_growth_and_its_largest_tables():
    database = storage_groups(some_storage())[0]
    assert cells(database["head"])[3:5] == [("5.0 MB", ""), ("+1.0 MB", "in 1 d")]
    assert [row["key"] for row in database["rows"]] == ["events_event", "events_room"]
    assert database["rows"][0]["cells"][3]["share"] == 0.75


def test_state_groups_show_what_nothing_needs_and_the_command_that_removes_it():
    state = storage_groups(some_storage())[1]["head"]
    assert cells(state)[2] == ("400 groups", "1,000 rows · 2.5 rows each")
    assert cells(state)[0] == ("State groups", "as deltas · 7 unreferenced")
    assert cells(state)[3] == ("2.0 MB", "")
    assert state["command"] == "manage.py purge orphans"
    assert cells(state)[-1][0].startswith("7 state groups are needed by nothing")


def test_sampled_number_says_about_and_none_says_nothing():
    assert storage_groups(some_storage(unreferenced_exact=False))[1]["head"]["cells"][-1]["text"].startswith("About 7")
    assert "command" not in storage_groups(some_storage(unreferenced_groups=0))[1]["head"]


def test_site_without_rooms_has_no_state_groups():
    assert [group["key"] for group in storage_groups(some_storage(state_groups=None))] == ["database"]
    assert storage_groups(None) == []


def test_rooms_are_not_on_the_page_that_all_viewers_share():
    page = render(live_page_data(a_snapshot(storage=some_storage())), frozenset())
    assert page.tables["rooms"] == []
    assert "!a:x" not in str(page)


def test_room_shows_its_events_members_and_newest_event():
    first = room_groups(some_storage().rooms)[0]
    assert first["key"] == "!a:x"
    assert cells(first["head"])[2:4] == [("950", ""), ("12", "")]
    assert first["head"]["cells"][4]["at"] == ago(60).isoformat()
