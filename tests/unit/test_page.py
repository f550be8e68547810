"""The live page as data: what each line says."""

from __future__ import annotations

from dataclasses import replace

from replsite.dashboard.page import READERS, STREAMS, live_page_data
from replsite.status import Health, HealthWord, Problem, Severity, Verdict
from tests.snapshots import CURRENT, STUCK, a_reader, a_snapshot, a_stream, a_writer, ago, on_stream

BLOCKED = Verdict("blocked", Severity.WRONG, "End it.")


def said(row):
    return [cell["text"] for cell in row["cells"]]


def stream_group(*writers, **changes):
    return live_page_data(a_snapshot(a_stream(*writers, **changes)))["streams"][0]


def reader_group(reader):
    return live_page_data(a_snapshot(reader))["readers"][0]


def test_every_line_has_a_cell_for_every_column():
    page = live_page_data(a_snapshot(a_stream(a_writer()), a_reader(), a_reader("x", closed_at=ago(3))))
    for columns, groups in ((STREAMS, page["streams"]), (READERS, page["readers"])):
        assert {len(row["cells"]) for group in groups for row in (group["head"], *group["rows"])} == {len(columns)}


def test_stream_names_the_writer_that_it_waits_for():
    group = stream_group(a_writer("web-3", status=BLOCKED, behind_facts=7, behind_seconds=12.0), a_writer("web-1"))
    assert said(group["head"])[1] == "blocked"
    assert said(group["head"])[-1] == "web-3 is blocked."
    assert group["head"]["cells"][3] == {"text": "7 facts", "sub": "12 s"}


def test_stream_that_is_well_says_nothing_more():
    assert said(stream_group(a_writer())["head"])[-1] == ""


def test_writer_shows_pending_facts_with_their_transaction():
    row = stream_group(a_writer(pending_facts=3, oldest_pending_transaction=815))["rows"][0]
    assert row["cells"][4] == {"text": "3", "sub": "transaction 815"}


def test_moments_are_given_as_such_so_that_time_alone_changes_nothing():
    assert stream_group(a_writer())["rows"][0]["cells"][5]["at"] == ago(5).isoformat()


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


def test_unsent_bytes_are_shown():
    assert "20 kB waiting" in reader_group(a_reader(buffer_bytes=20_000))["head"]["cells"][4]["sub"]


def test_markup_in_names_stays_text():
    assert said(reader_group(a_reader("<b>x</b>"))["head"])[0] == "<b>x</b>"


def test_health_line_has_the_first_problem_and_the_list_the_others():
    problems = (Problem("Writer a", BLOCKED), Problem("Reader b", STUCK))
    health = Health(HealthWord.WRONG, "Writer a is blocked: End it. (1 more below)", problems)
    page = live_page_data(replace(a_snapshot(), health=health))
    assert page["health"]["problems"] == ["Reader b is stuck: Restart it."]
