"""The live page as data: what each line says."""

from __future__ import annotations

import json
from dataclasses import replace

from replsite.dashboard.page import EFFECTS_SHOWN, PROBLEMS_SHOWN, live_page_data
from replsite.live_rows.jobs import JobsView
from replsite.live_rows.readers import BAD_READERS_SHOWN, CLOSED_READERS_SHOWN, FINE_READERS_SHOWN, READERS, RightsView
from replsite.live_rows.streams import HOLDERS_SHOWN, STREAMS
from replsite.status.words import Health, HealthWord, Problem, Severity, Verdict
from tests.support.snapshots import BLOCKED as BLOCKED_STREAM
from tests.support.snapshots import (
    CURRENT,
    STUCK,
    a_holder,
    a_job,
    a_reader,
    a_snapshot,
    a_stream,
    a_writer,
    ago,
    on_stream,
)

BLOCKED = Verdict("blocked", Severity.WRONG, "End it.")


def said(row):
    return [cell["text"] for cell in row["cells"]]


def stream_group(*writers, **changes):
    return live_page_data(a_snapshot(a_stream(*writers, **changes)))["streams"][0]


def reader_group(reader):
    return live_page_data(a_snapshot(reader))["readers"][0]


def test_every_line_has_a_cell_for_every_column():
    page = live_page_data(a_snapshot(a_stream(a_writer()), a_reader(), a_reader("x", closed_at=ago(3))))
    for table, groups in ((STREAMS, page["streams"]), (READERS, page["readers"])):
        assert {len(row["cells"]) for group in groups for row in (group["head"], *group["rows"])} == {
            len(table.columns)
        }


def test_stream_names_the_writer_that_it_waits_for():
    group = stream_group(a_writer("web-3", status=BLOCKED, behind_facts=7, behind_seconds=12.0), a_writer("web-1"))
    assert said(group["head"])[1] == "blocked"
    assert said(group["head"])[-1] == "web-3 is blocked."
    assert group["head"]["cells"][3] == {"text": "7 facts", "sub": "12 s"}


def test_stream_that_is_well_says_nothing_more():
    assert said(stream_group(a_writer())["head"])[-1] == ""


def test_who_holds_a_stream_back_has_a_row_with_the_button_that_ends_it():
    group = stream_group(a_writer(), holders=(a_holder(12),), status=BLOCKED_STREAM)
    assert (said(group["head"])[5], group["head"]["cells"][5]["since"]) == ("1", ago(12).isoformat())
    assert said(group["head"])[-1] == "Held back by session 81."
    row = group["rows"][0]
    assert row["cells"][0] == {"text": "session 81", "sub": "app · web · 10.0.0.1 · idle in transaction"}
    assert (said(row)[2], row["cells"][5]["since"]) == ("7", ago(12).isoformat())
    assert (row["actions"], row["about"]) == (("end",), "events")


def test_appends_that_are_open_for_a_moment_are_counted_and_not_listed():
    group = stream_group(a_writer(), holders=(a_holder(0.5), a_holder(0.5)))
    assert said(group["head"])[5] == "2"
    assert [row["key"] for row in group["rows"]] == ["master"]


def test_of_many_open_appends_the_first_are_listed():
    group = stream_group(holders=tuple(a_holder(9, pid=number) for number in range(HOLDERS_SHOWN + 1)))
    assert len(group["rows"]) == HOLDERS_SHOWN


def test_writer_that_is_blocked_leads_to_the_row_of_the_append():
    row = stream_group(a_writer(status=BLOCKED_STREAM, held_by="session 81", held_since=ago(12)))["rows"][0]
    assert said(row)[1] == "blocked"
    assert row["cells"][5] == {"text": "open", "since": ago(12).isoformat()}
    assert "actions" not in row


def test_moments_are_given_as_such_so_that_time_alone_changes_nothing():
    assert stream_group(a_writer())["rows"][0]["cells"][6]["at"] == ago(5).isoformat()


def test_retired_writer_has_no_lag():
    assert said(stream_group(a_writer(state="retired"))["rows"][0])[3] == "-"


def test_estimated_lag_says_about():
    reader = a_reader("r", on_stream(lag_facts=12_000, lag_exact=False, lag_seconds=90.0))
    assert reader_group(reader)["rows"][0]["cells"][3] == {"text": "about 12,000 facts", "sub": "1 min 30 s"}


def test_reader_names_the_stream_that_its_sentence_is_about():
    group = reader_group(a_reader("r", on_stream("caches", status=STUCK), on_stream("events", status=CURRENT)))
    assert said(group["head"])[-1] == "caches: Restart it."


def test_closed_connection_shows_its_reason_and_no_streams():
    status = Verdict("gone", Severity.FINE, "Connection closed: slow.")
    group = reader_group(a_reader("r", closed_at=ago(1), status=status))
    assert said(group["head"])[-1] == "Connection closed: slow."
    assert group["rows"] == []


def test_unsent_bytes_are_shown_and_when_the_buffer_is_full():
    reader = a_reader(buffer_bytes=20_000, seconds_to_overflow=42.0)
    assert reader_group(reader)["head"]["cells"][6] == {"text": "20 kB", "sub": "full in 42 s"}


def test_connection_shows_how_fast_bytes_come_and_go():
    reader = a_reader(bytes_out=5_000_000, bytes_in_per_second=12.4, bytes_out_per_second=3_400.0)
    assert reader_group(reader)["head"]["cells"][5] == {"text": "3.4 kB/s out", "sub": "12 B/s in · 5.0 MB sent"}


def test_position_of_a_connection_is_what_was_sent_and_a_followers_what_it_handled():
    positions = [reader_group(a_reader(kind=kind))["head"]["cells"][2]["sub"] for kind in ("connection", "follower")]
    assert positions == ["sent", "handled"]


def test_trend_tells_how_fast_the_lag_falls_and_when_it_is_gone():
    view = on_stream(
        lag_facts=600, lag_seconds=9.0, lag_change_per_second=-20.0, seconds_to_current=30.0, recent=(None, 900.0)
    )
    cell = reader_group(a_reader("r", view))["rows"][0]["cells"][4]
    assert cell == {"text": "falls 20/s", "sub": "current in 30 s", "series": [None, 900.0]}


def test_trend_of_a_reader_is_that_of_its_streams_together():
    views = [
        on_stream("a", lag_facts=10, lag_change_per_second=3.0, recent=(1.0, None, None)),
        on_stream("b", lag_facts=10, lag_change_per_second=-1.0, seconds_to_current=10.0, recent=(2.0, 5.0, None)),
    ]
    cell = reader_group(a_reader("r", *views))["head"]["cells"][4]
    assert cell == {"text": "grows 2.0/s", "series": [3.0, 5.0, None]}


def test_lag_that_does_not_change_is_steady_and_none_has_no_trend():
    steady = reader_group(a_reader("r", on_stream(lag_facts=3, lag_change_per_second=0.01)))
    assert said(steady["rows"][0])[4] == "steady"
    assert said(reader_group(a_reader())["rows"][0])[4] == "-"


def test_stream_shows_how_fast_it_is_written_with_its_last_minutes():
    group = stream_group(
        a_writer("a", facts_per_second=12.0), a_writer("b", facts_per_second=0.5), recent=(0.0, 12_345.6)
    )
    assert group["head"]["cells"][4] == {"text": "12/s", "series": [0.0, 12346]}
    assert [said(row)[4] for row in group["rows"]] == ["12/s", "0.5/s"]


def test_command_that_mends_can_be_copied():
    status = Verdict("odd", Severity.WARNING, "Odd. Run: manage.py check_streams.", "manage.py check_streams")
    assert stream_group(a_writer(status=status))["rows"][0]["command"] == "manage.py check_streams"
    assert "command" not in stream_group(a_writer())["rows"][0]


def test_reader_that_has_to_be_there_has_a_cell_for_every_column_and_no_page():
    status = Verdict("never seen", Severity.WARNING, "Start it.")
    head = reader_group(a_reader("search", kind="declared", status=status))["head"]
    assert len(head["cells"]) == len(READERS.columns)
    assert "id" not in head
    assert "REPLSITE_READERS" in head["cells"][0]["sub"]


def test_job_shows_how_much_is_done_and_what_is_left():
    head = live_page_data(a_snapshot(jobs=JobsView((a_job(),))))["jobs"][0]["head"]
    assert head["cells"][2]["share"] == 0.25
    assert head["cells"][3] == {"text": "15 s", "sub": "in this stage"}


def test_markup_in_names_stays_text():
    assert said(reader_group(a_reader("<b>x</b>"))["head"])[0] == "<b>x</b>"


def test_health_line_has_the_first_problem_and_the_list_the_others():
    problems = (Problem("Writer a", BLOCKED), Problem("Reader b", STUCK))
    health = Health(HealthWord.WRONG, "Writer a is blocked: End it. (1 more below)", problems)
    page = live_page_data(replace(a_snapshot(), health=health))
    assert [one["text"] for one in page["health"]["problems"]] == ["Reader b is stuck: Restart it."]
    assert page["health"]["said"] == "wrong: Writer a is blocked, and 1 more"


def test_what_a_problem_causes_is_named_below_it_and_not_as_a_problem_of_its_own():
    waiting = Verdict("waiting", Severity.NOTE, "It waits.")
    problems = (
        Problem("Writer a", BLOCKED, "a"),
        *(Problem(f"Reader {n}", waiting, f"r{n}", cause="Writer a") for n in range(EFFECTS_SHOWN + 2)),
        Problem("Reader b", STUCK, "b"),
    )
    health = live_page_data(replace(a_snapshot(), health=Health(HealthWord.WRONG, "Writer a is blocked", problems)))[
        "health"
    ]
    assert health["first"]["effects"] == [*(f"Reader {n} is waiting." for n in range(EFFECTS_SHOWN)), "And 2 more."]
    assert [one["text"] for one in health["problems"]] == ["Reader b is stuck: Restart it."]


def test_so_many_problems_are_named_and_the_others_counted():
    problems = tuple(Problem(f"Reader {n}", STUCK) for n in range(PROBLEMS_SHOWN + 5))
    page = live_page_data(replace(a_snapshot(), health=Health(HealthWord.WRONG, "x", problems)))
    assert len(page["health"]["problems"]) == PROBLEMS_SHOWN + 1
    assert page["health"]["problems"][-1]["text"] == "And 4 more, in the tables below."


def names(readers):
    return [group["head"]["cells"][0]["text"] for group in live_page_data(a_snapshot(*readers))["readers"]]


def test_of_closed_readers_the_last_ones_are_listed_and_how_many_more_there_are():
    closed = [a_reader(f"c{n}", closed_at=ago(n)) for n in range(CLOSED_READERS_SHOWN + 25)]
    assert names([a_reader("open"), *closed]) == [
        "open",
        *(f"c{n}" for n in range(CLOSED_READERS_SHOWN)),
        "and 25 more that closed a short while ago",
    ]


def test_of_readers_that_are_fine_so_many_are_listed_after_those_that_need_a_look():
    bad = [a_reader(f"b{n}", on_stream(status=STUCK)) for n in range(BAD_READERS_SHOWN)]
    fine = [a_reader(f"f{n}") for n in range(FINE_READERS_SHOWN + 3)]
    found = names([*bad, *fine])
    assert found[: len(bad)] == [reader.name for reader in bad]
    assert found[len(bad) :] == [*(f"f{n}" for n in range(FINE_READERS_SHOWN)), "and 3 more that are fine"]


def test_of_readers_that_need_a_look_the_worst_are_listed_and_how_many_more_there_are():
    """A page of a thousand that are stuck had 4.6 MB: more than may wait for a viewer, so each was cut off, again and again."""
    streams = [on_stream(stream=f"stream {n}", status=STUCK) for n in range(15)]
    bad = [a_reader(f"b{n}", *streams) for n in range(1_000)]
    page = live_page_data(
        a_snapshot(*bad, *(a_reader(f"f{n}", *map(on_stream, "abcdefghijklmno")) for n in range(1_000)))
    )
    more = page["readers"][-2]["head"]
    assert more["cells"][0]["text"] == f"and {1_000 - BAD_READERS_SHOWN} more that need a look"
    assert more["severity"] == STUCK.severity.name.lower()
    assert len(json.dumps(page)) < 1_000_000


def test_line_that_stands_for_more_has_a_cell_for_every_column_and_a_key_of_its_own():
    closed = [a_reader(f"c{n}", closed_at=ago(n)) for n in range(CLOSED_READERS_SHOWN + 1)]
    groups = live_page_data(a_snapshot(*closed))["readers"]
    assert len(groups[-1]["head"]["cells"]) == len(READERS.columns)
    assert len({group["key"] for group in groups}) == len(groups)


def test_few_readers_are_all_listed():
    assert names([a_reader("a"), a_reader("b", closed_at=ago(1))]) == ["a", "b"]


def test_stream_tells_how_many_writers_retired_earlier():
    head = stream_group(a_writer(), retired_before=12)["head"]
    assert "12 retired earlier" in head["cells"][0]["sub"]
    assert "retired" not in stream_group(a_writer())["head"]["cells"][0]["sub"]


def test_writers_of_a_stream_that_several_write_have_their_last_minutes_too():
    recent = {"facts_per_second": 2.0, "recent": (1.0, 2.0)}
    (alone,) = stream_group(a_writer("a", **recent))["rows"]
    several = stream_group(a_writer("a", **recent), a_writer("b"))["rows"]
    assert "series" not in alone["cells"][4]
    assert [row["cells"][4].get("series") for row in several] == [[1.0, 2.0], None]


def test_rights_of_a_certificate_have_a_row_that_says_what_was_refused():
    rights = RightsView("worker", names=("worker",), streams=("*",), reports=())
    group = reader_group(a_reader(kind="connection", rights=rights))
    row = group["rows"][-1]
    assert said(row)[0] == "Rights of certificate worker"
    assert row["cells"][0]["sub"] == "calls itself worker · follows anything · reports nothing"
    assert (row["severity"], said(row)[-1]) == ("fine", "")
    refused = replace(rights, refused=2, refusal="this certificate may not send USER_IP")
    row = reader_group(a_reader(kind="connection", rights=refused, closed_at=ago(1)))["rows"][-1]
    assert (row["severity"], said(row)[-1]) == (
        "note",
        "2 commands refused, the last one because this certificate may not send USER_IP.",
    )
    assert len(row["cells"]) == len(group["head"]["cells"])
