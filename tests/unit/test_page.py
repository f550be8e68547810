"""The live page as data: what each line says."""

from __future__ import annotations

from dataclasses import replace

from replsite.dashboard.page import CLOSED_READERS_SHOWN, FINE_READERS_SHOWN, READERS, STREAMS, live_page_data
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


def names(readers):
    return [group["head"]["cells"][0]["text"] for group in live_page_data(a_snapshot(*readers))["readers"]]


def test_of_closed_readers_the_last_ones_are_listed_and_how_many_more_there_are():
    closed = [a_reader(f"c{n}", closed_at=ago(n)) for n in range(CLOSED_READERS_SHOWN + 25)]
    assert names([a_reader("open"), *closed]) == [
        "open",
        *(f"c{n}" for n in range(CLOSED_READERS_SHOWN)),
        "and 25 more that closed a short while ago",
    ]


def test_of_readers_that_are_fine_so_many_are_listed_and_none_that_needs_a_look_is_left_out():
    bad = [a_reader(f"b{n}", on_stream(status=STUCK)) for n in range(FINE_READERS_SHOWN + 5)]
    fine = [a_reader(f"f{n}") for n in range(FINE_READERS_SHOWN + 3)]
    found = names([*bad, *fine])
    assert found[: len(bad)] == [reader.name for reader in bad]
    assert found[len(bad) :] == [*(f"f{n}" for n in range(FINE_READERS_SHOWN)), "and 3 more that are fine"]


def test_line_that_stands_for_more_has_a_cell_for_every_column_and_a_key_of_its_own():
    closed = [a_reader(f"c{n}", closed_at=ago(n)) for n in range(CLOSED_READERS_SHOWN + 1)]
    groups = live_page_data(a_snapshot(*closed))["readers"]
    assert len(groups[-1]["head"]["cells"]) == len(READERS)
    assert len({group["key"] for group in groups}) == len(groups)


def test_few_readers_are_all_listed():
    assert names([a_reader("a"), a_reader("b", closed_at=ago(1))]) == ["a", "b"]


def test_stream_tells_how_many_writers_retired_earlier():
    head = stream_group(a_writer(), retired_before=12)["head"]
    assert "12 retired earlier" in head["cells"][0]["sub"]
    assert "retired" not in stream_group(a_writer())["head"]["cells"][0]["sub"]
