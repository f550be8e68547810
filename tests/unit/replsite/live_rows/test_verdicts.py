"""Every status word by its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replsite.live_rows.streams import ExpectedRow
from replsite.live_rows.verdicts import (
    Limits,
    expected_verdict,
    hold_verdict,
    job_verdict,
    missing_reader_verdict,
    reader_verdict,
    sequence_verdict,
    site_health,
    tables_verdict,
    worst,
    writer_verdict,
)
from replsite.status.words import ExpectedWord, HealthWord, HoldWord, Problem, ReaderWord, Severity, Verdict, WriterWord
from streams.core.sequences import FoundSequence
from streams.reading import reader_commands
from streams.reading.reader_table import NAMED
from tests.support.snapshots import NOW, a_holder, a_job, a_reader, a_writer, ago, on_stream

LIMITS = Limits()


def writer(last_fact_age=None, held=None, state="active"):
    at = None if last_fact_age is None else ago(last_fact_age)
    return writer_verdict(a_writer(state=state, last_write_at=at), held, LIMITS, NOW)


def held(age=11.0, **seen):
    holder = a_holder(**{"words": "database session 4 'app' of role r", "statement": "", **seen})
    return replace(holder, seconds=age)


def reader(named="", heartbeat_age=0.0, close_reason=None, limits=LIMITS, **on):
    """The verdict on a reader on a stream. ``named`` is its name, if it is a named reader."""
    row = a_reader(
        named or "r",
        key=f"{NAMED}{named}" if named else "k",
        heartbeat_seconds=heartbeat_age,
        close_reason=close_reason or "",
        ended_at=None if close_reason is None else NOW,
    )
    return reader_verdict(row, on_stream(**on), limits, NOW)


def test_writer_with_a_young_fact_is_writing():
    assert writer(last_fact_age=9.9).word == WriterWord.WRITING


@pytest.mark.parametrize("age", [2.0, None], ids=["young", "of an age that the database hides"])
def test_writer_with_an_open_append_is_writing(age):
    assert writer(last_fact_age=500, held=held(age)).word == WriterWord.WRITING


@pytest.mark.parametrize("age", [None, 10.1, 86_400])
def test_writer_with_nothing_to_write_is_idle_and_fine(age):
    verdict = writer(last_fact_age=age)
    assert (verdict.word, verdict.severity) == (WriterWord.IDLE, Severity.FINE)


def test_writer_whose_append_is_open_for_long_is_blocked_and_names_the_session():
    verdict = writer(last_fact_age=1, held=held(statement="INSERT INTO x"))
    assert (verdict.word, verdict.severity, verdict.actions) == (WriterWord.BLOCKED, Severity.WRONG, ("end",))
    assert "atabase session 4 'app' of role r has appended" in verdict.sentence
    assert "its last statement: INSERT INTO x." in verdict.sentence
    assert "commit or roll back" in verdict.sentence
    assert verdict.command == "manage.py streams abort events"


def test_append_that_waits_for_a_lock_names_the_session_that_has_it():
    verdict = hold_verdict(held(waits_for="database session 9 of role boss"), LIMITS)
    assert "waits for a lock of database session 9 of role boss" in verdict.sentence
    assert verdict.actions == ("end lock holder", "end")


def test_prepared_transaction_is_ended_in_sql():
    verdict = hold_verdict(held(prepared="it's"), LIMITS)
    assert (verdict.command, verdict.actions) == ("ROLLBACK PREPARED 'it''s'", ())
    assert verdict.command in verdict.sentence


def test_append_that_is_open_for_a_moment_is_fine():
    verdict = hold_verdict(held(9.9), LIMITS)
    assert (verdict.word, verdict.severity, verdict.actions) == (HoldWord.OPEN, Severity.FINE, ())


def test_a_command_for_copying_is_one_word_for_the_shell_whatever_a_stream_is_called():
    verdict = hold_verdict(replace(held(), stream="web;reboot"), LIMITS)
    assert verdict.command.endswith(" 'web;reboot'")
    assert verdict.command in verdict.sentence


def test_retired_writer_is_retired_whatever_else():
    assert writer(state="retired", held=held()).word == WriterWord.RETIRED


@pytest.mark.parametrize(("age", "said"), [(None, "Its last fact: never."), (7_200, "Its last fact: 2 h ago.")])
def test_expected_writer_that_is_not_active_is_missing_and_tells_its_last_fact(age, said):
    verdict = expected_verdict(ExpectedRow("events", "web", last_write_at=None if age is None else ago(age)), NOW)
    assert (verdict.word, verdict.severity) == (ExpectedWord.MISSING, Severity.WRONG)
    assert said in verdict.sentence


def test_reader_that_has_read_everything_is_current():
    assert reader(quiet_seconds=3).word == ReaderWord.CURRENT


def test_reader_that_misses_only_facts_on_their_way_is_current():
    assert reader(lag_facts=500, lag_seconds=0.9, quiet_seconds=0.1).word == ReaderWord.CURRENT


@pytest.mark.parametrize("quiet", [None, 61])
def test_reader_of_a_quiet_stream_is_idle_however_long(quiet):
    verdict = reader(quiet_seconds=quiet, unmoved_seconds=86_400)
    assert (verdict.word, verdict.severity) == (ReaderWord.IDLE, Severity.FINE)


def test_reader_with_falling_lag_is_catching_up_and_says_when_it_is_done():
    verdict = reader(lag_facts=1000, lag_seconds=60, unmoved_seconds=0, lag_change_per_second=-100)
    assert verdict.word == ReaderWord.CATCHING_UP
    assert "current in about 10 s" in verdict.sentence


def test_reader_with_lag_seen_once_is_catching_up():
    assert reader(lag_facts=1000, lag_seconds=6000).word == ReaderWord.CATCHING_UP


@pytest.mark.parametrize(
    ("exact", "said"), [(True, "86,135 facts, 50 s behind"), (False, "About 86,135 facts, 50 s behind")]
)
def test_a_lag_that_is_estimated_is_told_as_such(exact, said):
    """Beyond the newest facts it is the difference of IDs, which counts rolled-back IDs, too."""
    assert reader(lag_facts=86_135, lag_seconds=50, lag_exact=exact).sentence.startswith(said)


def test_reader_with_rising_lag_is_falling_behind():
    verdict = reader(lag_facts=100, lag_seconds=5, unmoved_seconds=0, lag_change_per_second=3)
    assert (verdict.word, verdict.severity) == (ReaderWord.FALLING_BEHIND, Severity.WARNING)


@pytest.mark.parametrize(("facts", "seconds"), [(99, 50), (5000, 4.9)])
def test_lag_below_either_floor_is_not_falling_behind(facts, seconds):
    assert (
        reader(lag_facts=facts, lag_seconds=seconds, unmoved_seconds=0, lag_change_per_second=3).word
        == ReaderWord.CATCHING_UP
    )


def test_living_reader_that_does_not_move_is_stuck():
    verdict = reader(lag_facts=1, lag_seconds=10, unmoved_seconds=10, lag_change_per_second=1)
    assert (verdict.word, verdict.severity) == (ReaderWord.STUCK, Severity.WRONG)


def test_reader_that_was_idle_for_long_is_not_stuck_at_the_first_new_fact():
    assert reader(lag_facts=1, lag_seconds=2, unmoved_seconds=86_400).word == ReaderWord.CATCHING_UP


def test_silent_reader_is_gone():
    verdict = reader(heartbeat_age=3.1, lag_facts=5, lag_seconds=50, unmoved_seconds=50)
    assert (verdict.word, verdict.severity) == (ReaderWord.GONE, Severity.WARNING)


def test_closed_connection_is_gone_with_its_reason_and_no_cause_for_alarm():
    verdict = reader(close_reason="slow", heartbeat_age=100)
    assert (verdict.word, verdict.severity) == (ReaderWord.GONE, Severity.FINE)
    assert "slow" in verdict.sentence


SEQUENCE = FoundSequence(
    "events", "events_event_stream_seq", 1, "p", "bigint", 2, 1, 2**63 - 1, 1, 1, False, True, 5, ("public",), (), ""
)


@pytest.mark.parametrize(
    ("value", "stored", "in_tables", "place"),
    [
        (5, 9, 0, "below the stored position 9: the next IDs would be given out again"),
        (5, 4, 9, "below 9, the highest ID in the tables"),
        (0, 0, 0, "before its first value: no reader would get the fact with the next ID"),
    ],
)
def test_sequence_below_what_it_has_given_out_is_wrong_and_names_the_repair(value, stored, in_tables, place):
    verdict = sequence_verdict(replace(SEQUENCE, last_value=value), stored, in_tables)
    assert verdict is not None
    assert (verdict.word, verdict.severity) == ("sequence behind", Severity.WRONG)
    assert f"The sequence is at {value}, {place}" in verdict.sentence
    assert "check_streams --repair" in verdict.sentence


@pytest.mark.parametrize("value", [None, 9, 10])
def test_sequence_at_or_above_the_position_is_well(value):
    assert sequence_verdict(replace(SEQUENCE, last_value=value), 9, 9) is None


def test_of_a_stream_that_this_program_does_not_have_no_sequence_is_judged():
    assert sequence_verdict(None, 9, 9) is None


def test_sequence_with_which_facts_would_be_lost_is_wrong_wherever_it_is():
    verdict = sequence_verdict(replace(SEQUENCE, cache=50), 9, 9)
    assert verdict is not None
    assert (verdict.word, verdict.severity) == ("sequence unfit", Severity.WRONG)
    assert "CACHE 50" in verdict.sentence and verdict.command == "manage.py check_streams --repair"


def test_sequence_that_would_restart_elsewhere_is_a_warning():
    verdict = sequence_verdict(replace(SEQUENCE, start=1), 4, 4)
    assert verdict is not None
    assert (verdict.word, verdict.severity) == ("sequence unfit", Severity.WARNING)


def test_sequence_in_another_schema_is_mended_by_no_command():
    verdict = sequence_verdict(replace(SEQUENCE, schemas=("other", "public")), 4, 4)
    assert verdict is not None
    assert (verdict.severity, verdict.command, verdict.actions) == (Severity.WRONG, "", ())
    assert "search_path" in verdict.sentence


def test_tables_whose_numbers_are_taken_are_counted():
    assert (
        "and 2 more tables: new rows are refused" in tables_verdict(["events_room", "auth_user", "auth_group"]).sentence
    )
    assert "more" not in tables_verdict(["events_room"]).sentence


def verdicts(*severities):
    return [Verdict(str(n), severity, "") for n, severity in enumerate(severities)]


def test_worst_is_the_first_of_the_most_severe():
    found = verdicts(Severity.FINE, Severity.WRONG, Severity.WRONG)
    assert worst(found, found[0]).word == "1"


def test_worst_of_nothing_is_the_default():
    assert worst([], verdicts(Severity.NOTE)[0]).severity == Severity.NOTE


@pytest.mark.parametrize(
    ("severities", "word"),
    [
        ([], HealthWord.WELL),
        ([Severity.NOTE], HealthWord.WELL),
        ([Severity.NOTE, Severity.WARNING], HealthWord.LOOK),
        ([Severity.WARNING, Severity.WRONG], HealthWord.WRONG),
    ],
)
def test_health_is_the_worst_status(severities, word):
    assert site_health([Problem("x", v) for v in verdicts(*severities)], "3 streams").word == word


def test_health_says_the_worst_first_and_how_many_more():
    bad = [
        Problem("Reader r", Verdict("gone", Severity.WARNING, "Start it.")),
        Problem("Writer w", Verdict("blocked", Severity.WRONG, "End it.")),
    ]
    assert site_health(bad, "").sentence == "Writer w is blocked: End it. (1 more below)"


def test_health_says_what_there_is_when_all_is_well():
    assert site_health([], "3 streams, 1 writer").sentence == "All is well: 3 streams, 1 writer."


@pytest.mark.parametrize(
    ("seen", "word", "said"),
    [
        (a_job(state="running", seconds_left=15.0), "running", "15 s left"),
        (a_job(seconds_left=None, state="running", cancel_asked_by="ann"), "running", "next step"),
        (a_job(seconds_left=None, state="running", killed=True), "killed", "runjobs"),
        (a_job(seconds_left=None, state="queued", queued_at=ago(59)), "queued", "turn"),
        (a_job(seconds_left=None, state="queued", queued_at=ago(61)), "waiting", "Start manage.py runjobs"),
        (a_job(seconds_left=None, state="queued", queued_at=ago(61), is_served=True), "queued", "turn"),
        (a_job(seconds_left=None, state="failed", error="disk full\nTraceback"), "failed", "disk full"),
        (a_job(seconds_left=None, state="failed"), "failed", "No reason"),
        (a_job(seconds_left=None, state="cancelled", cancel_asked_by="ann"), "cancelled", "stays"),
        (a_job(seconds_left=None, state="done"), "done", ""),
        (
            a_job(seconds_left=None, state="done", differences=2, where="!r:a.test", repair="manage.py resync rooms"),
            "done with differences",
            "Repair them: manage.py",
        ),
        (
            a_job(seconds_left=None, state="done", differences=1, where="all rooms"),
            "done with differences",
            "1 difference in all rooms cannot be recomputed",
        ),
    ],
)
def test_a_job_has_the_word_of_its_rule(seen, word, said):
    verdict = job_verdict(seen, NOW)
    assert verdict.word == word
    assert said in verdict.sentence
    assert "Traceback" not in verdict.sentence


def test_reader_that_went_back_is_told_for_a_minute_whatever_its_lag():
    verdict = reader(went_back_seconds=59, lag_facts=500, lag_seconds=50)
    assert (verdict.word, verdict.severity) == (ReaderWord.WENT_BACK, Severity.WARNING)
    assert reader(went_back_seconds=61).word == ReaderWord.IDLE


def test_missing_reader_is_never_seen_and_says_who():
    verdict = missing_reader_verdict("search")
    assert (verdict.word, verdict.severity) == (ReaderWord.NEVER_SEEN, Severity.WARNING)
    assert "search" in verdict.sentence


@pytest.mark.parametrize(
    "verdict",
    [
        hold_verdict(held(), LIMITS),
        hold_verdict(held(waits_for="another"), LIMITS),
        sequence_verdict(SEQUENCE, 9, 0),
        tables_verdict(["events_room"]),
        job_verdict(a_job(seconds_left=None, state="queued", queued_at=ago(100)), NOW),
        reader("bil ling", error="ValueError", runs=False, lag_facts=1),
        reader("billing", error="Facts are gone. See manage.py resync reader billing.", runs=False),
        reader("billing", runs=False, unrun_seconds=99, lag_facts=1, lag_seconds=99),
        reader(
            "billing", runs=False, unrun_seconds=99, has_ended=True, limits=replace(LIMITS, wanted_readers=("billing",))
        ),
        reader("billing", parked_facts=3, parked_error="ValueError"),
    ],
    ids=lambda verdict: verdict.word,
)
def test_command_to_copy_is_in_the_sentence_word_for_word(verdict):
    assert verdict.command.startswith("manage.py ")
    assert verdict.command in verdict.sentence


def test_a_reader_without_handlers_is_started_by_its_own_command(monkeypatch):
    monkeypatch.setitem(reader_commands._commands, "sums", "manage.py pipeline run")
    behind = reader("sums", runs=False, unrun_seconds=99, lag_facts=1, lag_seconds=99)
    assert behind.word == ReaderWord.LEFT_BEHIND and behind.command == "manage.py pipeline run"
    assert "Start it: manage.py pipeline run." in behind.sentence
    failed = reader("sums", runs=False, unrun_seconds=99, error="ValueError", lag_facts=1)
    assert failed.word == ReaderWord.FAILED and failed.command == "manage.py pipeline run"


def test_a_reader_that_runs_and_has_read_everything_is_well_whatever_stopped_it_before():
    assert reader("r", error="ValueError").word == ReaderWord.IDLE
    assert reader("r", error="ValueError", lag_facts=1).word == ReaderWord.FAILED


def test_parked_facts_hide_nothing_that_is_worse():
    parked = {"parked_facts": 3, "parked_error": "ValueError"}
    assert reader("r", **parked, lag_facts=5, lag_seconds=2).word == ReaderWord.PARKING
    stuck = reader("r", **parked, lag_facts=5, lag_seconds=20, unmoved_seconds=20)
    assert stuck.word == ReaderWord.STUCK


def test_parked_facts_are_retried_where_they_are_told():
    parked = {"parked_facts": 3, "parked_error": "ValueError"}
    verdict = reader("r", **parked)
    assert verdict.actions == ("retry", "parked")
    assert "asked" not in verdict.sentence
    waits = reader("r", retry_waits=True, **parked)
    assert "A retry was asked for and happens within seconds." in waits.sentence
    waits = reader("r", retry_waits=True, runs=False, has_ended=True, **parked)
    assert "happens when its process starts" in waits.sentence


def test_a_reader_that_waits_for_a_writer_is_not_stuck():
    verdict = reader(
        lag_facts=5, lag_seconds=200, unmoved_seconds=200, waits_for="it waits for writer w, which is blocked"
    )
    assert (verdict.word, verdict.severity) == (ReaderWord.WAITING, Severity.NOTE)
    assert "writer w" in verdict.sentence


def test_an_error_of_a_kilobyte_is_cut_in_the_sentence():
    verdict = reader("r", error="x" * 1000, runs=False, lag_facts=1)
    assert len(verdict.sentence) < 500
