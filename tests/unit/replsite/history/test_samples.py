"""A snapshot as rows of history."""

from __future__ import annotations

from replsite.history.samples import MOST_SUBJECTS, changes_between, samples_of, verdicts_of
from replsite.status.words import Severity, Verdict
from tests.support.snapshots import (
    CURRENT,
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

BLOCKED = Verdict("blocked", Severity.WRONG, "End it.")


def rows(*parts):
    return {(row.stream, row.reader): row for row in samples_of(a_snapshot(*parts))}


def test_a_stream_tells_its_position_and_its_open_appends():
    row = rows(a_stream(a_writer(), linear_position=77, holders=(a_holder(2.0), a_holder(3.5))))["events", ""]
    assert (row.position, row.waiting, row.seconds, row.word) == (77, 2, 3.5, "writing")


def test_a_reader_tells_its_lag_on_each_stream():
    found = rows(
        a_reader("sender", on_stream(position=5, lag_facts=9, lag_seconds=1.5, status=STUCK), on_stream("caches"))
    )
    row = found["events", "sender"]
    assert (row.position, row.waiting, row.seconds, row.word, row.severity) == (5, 9, 1.5, "stuck", 3)
    assert ("caches", "sender") in found


def test_readers_of_one_name_are_shown_as_the_worst():
    one, other = on_stream(position=5, lag_facts=9, status=STUCK), on_stream(position=8, lag_facts=2, lag_seconds=4.0)
    row = rows(a_reader("sender", one), a_reader("sender", other))["events", "sender"]
    assert (row.position, row.waiting, row.seconds, row.word) == (5, 9, 4.0, "stuck")


def test_closed_readers_are_not_sampled():
    assert rows(a_reader("gone", closed_at=ago(5))) == {}


def test_names_that_are_not_plain_and_those_beyond_the_limit_are_other():
    odd = [a_reader("<b>x</b>"), *(a_reader(f"r{number}") for number in range(300))]
    names = {reader for _, reader in rows(*odd)}
    assert len(names) <= 101
    assert "other" in names
    assert not any("<" in name for name in names)


def test_the_number_of_rows_is_bounded():
    streams = [on_stream(f"s{number}") for number in range(50)]
    readers = [a_reader(f"r{number}", *streams) for number in range(90)]
    assert len(rows(*readers)) == MOST_SUBJECTS
    assert len(verdicts_of(a_snapshot(*readers))) == MOST_SUBJECTS


def known(verdict):
    return str(verdict.word), int(verdict.severity)


def test_getting_worse_and_better_is_told():
    subject = ("events", "master", "")
    worse = changes_between({subject: ("writing", 0)}, {subject: BLOCKED})
    assert [(change.subject, change.was, str(change.now.word)) for change in worse] == [(subject, "writing", "blocked")]
    better = changes_between({subject: known(BLOCKED)}, {subject: CURRENT})
    assert [(change.was, str(change.now.word)) for change in better] == [("blocked", "current")]


def test_coming_going_and_staying_in_good_health_is_no_news():
    subject = ("events", "", "sender")
    assert changes_between({}, {subject: CURRENT}) == []
    assert changes_between({subject: known(CURRENT)}, {}) == []
    assert changes_between({subject: known(CURRENT)}, {subject: Verdict("idle", Severity.FINE, "")}) == []


def test_coming_in_bad_health_is_told():
    assert [change.was for change in changes_between({}, {("events", "", "sender"): STUCK})] == [""]


def test_what_was_wrong_and_is_not_there_any_more_is_told():
    (change,) = changes_between({("events", "", "sender"): known(STUCK)}, {})
    assert (change.was, str(change.now.word), change.now.severity) == ("stuck", "not there", Severity.FINE)


def test_a_snapshot_that_does_not_change_tells_nothing_twice():
    now = verdicts_of(a_snapshot(a_stream(a_writer(status=BLOCKED)), a_reader("r", on_stream(status=STUCK))))
    before = {subject: known(verdict) for subject, verdict in now.items()}
    assert len(now) == 2
    assert changes_between(before, now) == []


def test_the_database_and_its_largest_tables_are_samples_of_no_stream():
    found = {row.reader: row for row in samples_of(a_snapshot(storage=some_storage())) if not row.stream}
    assert set(found) == {"(database)", "events_event", "events_room"}
    assert (found["events_event"].position, found["events_event"].waiting) == (3_000_000, 1_000)
