"""``resync reader``: a reader that lost facts is set anew, knowingly and with a trace."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.core.tokens import VectorToken
from streams.errors import ReaderNameTaken, ResyncNeeded, TokenError, UnknownReader
from streams.follow import Handler, Reader, plan_resync, resync_reader
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import ParkedFact, PartCursor, ReaderResync, StoredCursor
from streams.reading import positions_by_time
from tests.support.effects import running
from tests.support.made_rooms import public_room
from tests.support.persisted_rooms import persist_all
from tests.support.writing import append, as_instance, held_open, session, stored, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lost() -> list[int]:
    """Facts of which the first three were trimmed before the reader, which has the first, could read them."""
    wanted = append(6)
    wait_for_linear(wanted[-1])
    StoredCursor.objects.create(reader="billing", stream="caches", base=wanted[0])
    with session() as cursor:
        list(trim(cursor, TrimRequest(stream(), Keep(facts=3), ignored=("billing",), settle_seconds=0)))
    return wanted


def handled() -> list[int]:
    seen: list[int] = []
    Reader("billing", [Handler("caches", "billing", lambda chunk: seen.extend(one.token for one in chunk))]).catch_up()
    return seen


def test_a_reader_goes_on_at_the_present_positions(lost):
    with pytest.raises(ResyncNeeded):
        handled()
    resync_reader("billing", by="me")
    assert handled() == []
    later = append(2)
    wait_for_linear(later[-1])
    assert handled() == later


def test_or_after_a_token_of_the_operators_choice(lost):
    resync_reader("billing", {"caches": VectorToken(lost[2])}, by="me")
    assert handled() == lost[3:]


def test_a_trace_stays(lost):
    resync_reader("billing", {"caches": VectorToken(lost[4])}, by="me")
    trace = ReaderResync.objects.get()
    assert (trace.reader, trace.stream, trace.from_base, trace.to_base) == ("billing", "caches", lost[0], lost[4])
    assert trace.resynced_by == "me"


def test_a_token_below_the_mark_is_refused(lost):
    with pytest.raises(TokenError, match=f"Give a token of at least {lost[2]}"):
        resync_reader("billing", {"caches": VectorToken(lost[1])})
    assert not ReaderResync.objects.exists()


def test_a_token_beyond_the_present_is_refused(lost):
    with pytest.raises(TokenError, match="lies beyond the present position"):
        resync_reader("billing", {"caches": VectorToken(lost[-1] + 1)})


def test_a_fact_of_a_new_writer_that_nobody_looked_at_is_of_the_present():
    StoredCursor.objects.create(reader="billing", stream="caches", base=1)
    with as_instance("new"):
        last = append(2)[-1]
    resync_reader("billing", {"caches": VectorToken(last)})
    assert handled() == []


def test_a_running_reader_is_left_alone(lost):
    resync_reader("billing")
    with (
        running(Handler("caches", "billing", lambda chunk: None), name="billing"),
        pytest.raises(ReaderNameTaken, match="Stop that process"),
    ):
        resync_reader("billing")


def test_an_unknown_reader_is_named():
    with pytest.raises(UnknownReader, match="There is no reader 'nobody'"):
        resync_reader("nobody")


def test_a_stream_that_the_reader_does_not_follow_is_named(lost):
    with pytest.raises(UnknownReader, match="does not follow 'events', but caches"):
        resync_reader("billing", {"events": VectorToken(1)})


def test_the_command_sets_it_and_says_from_where_to_where(lost, run_manage):
    done = run_manage("resync", "reader", "billing", "--from", str(lost[3]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"billing on caches: {lost[0]} -> {lost[3]}"
    assert ReaderResync.objects.get().resynced_by


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("reader", "billing", "--from", "caches=later"), 2, "is not a number"),
        (("reader", "billing", "--from", "clouds=1"), 2, "There is no stream 'clouds'"),
        (("reader", "nobody"), 1, "There is no reader 'nobody'"),
        (("reader",), 2, "NAME"),
    ],
)
def test_what_the_command_cannot_do_is_said(lost, run_manage, arguments, status, words):
    done = run_manage("resync", *arguments)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr


# --- replay from a time ---------------------------------------------------------------------------------------------


def inserted(*minutes: int) -> list[int]:
    """Facts that were inserted so many minutes ago, in the order of their IDs."""
    numbers = append(len(minutes))
    for number, ago in zip(numbers, minutes, strict=True):
        of = CacheInvalidation.objects.filter(stream_id=number).writable()
        of.update(received_at=Now() - timedelta(minutes=ago))
    wait_for_linear(numbers[-1])
    return numbers


def minutes_ago(minutes: float) -> datetime:
    return timezone.now() - timedelta(minutes=minutes)


@pytest.fixture
def read() -> list[int]:
    """Facts of an hour, all of which the reader has handled."""
    numbers = inserted(60, 50, 40, 30, 20, 10)
    StoredCursor.objects.create(reader="billing", stream="caches", base=numbers[-1])
    return numbers


def test_a_reader_handles_again_what_was_inserted_since(read):
    (planned,) = plan_resync("billing", minutes_ago(35))
    assert (planned.again.facts, planned.again.first, planned.passed.facts) == (3, read[3], 0)
    assert StoredCursor.objects.get().base == read[-1], "a plan changes nothing"
    assert not ReaderResync.objects.exists()
    resync_reader("billing", minutes_ago(35), by="me")
    assert handled() == read[3:]
    assert (trace := ReaderResync.objects.get()).to_base == read[3] - 1
    assert (trace.from_base, trace.resynced_by) == (read[-1], "me")


def test_a_fact_that_was_inserted_out_of_order_is_handled_again():
    """IDs were reserved at 32 minutes, and their row was stored after that of the next IDs."""
    numbers = inserted(60, 50, 29, 32, 31, 10)
    StoredCursor.objects.create(reader="billing", stream="caches", base=numbers[-1])
    resync_reader("billing", minutes_ago(30))
    assert handled() == numbers[2:]


def test_a_replay_never_passes_over_what_was_not_handled(read):
    StoredCursor.objects.update(base=read[1])
    (planned,) = plan_resync("billing", minutes_ago(15))
    assert (planned.again.facts, planned.passed.facts, planned.move.now.base) == (0, 0, read[1])
    resync_reader("billing", minutes_ago(15))
    assert handled() == read[2:]


def test_a_replay_of_all_time_begins_at_the_low_water_mark_and_says_so(lost):
    StoredCursor.objects.update(base=lost[-1])
    (planned,) = plan_resync("billing", minutes_ago(600))
    assert (planned.again.facts, planned.trimmed_upto) == (3, lost[2])
    assert f"facts up to {lost[2]} were trimmed" in " ".join(planned.sentences())
    resync_reader("billing", minutes_ago(600))
    assert handled() == lost[3:]


def test_a_time_in_the_future_is_refused(read):
    with pytest.raises(TokenError, match="in the future"):
        plan_resync("billing", minutes_ago(-5))


def test_a_reader_that_was_passed_over_nothing_is_told_so(read):
    (planned,) = plan_resync("billing")
    assert planned.sentences() == [
        f"caches: no stored fact is handled again or passed over; its cursor is at {read[-1]} then."
    ]


def test_the_plan_of_a_jump_to_the_present_counts_what_is_passed_over(read):
    StoredCursor.objects.update(base=read[1])
    (planned,) = plan_resync("billing")
    assert (planned.passed.facts, planned.again.facts) == (4, 0)
    assert "4 facts up to" in planned.sentences()[0]


def test_dead_letters_of_facts_that_are_handled_again_are_told(read):
    for number in (read[0], read[4]):
        ParkedFact.objects.create(
            reader="billing", stream="caches", token=number, rows=[], error="", traceback="", attempts=1
        )
    (planned,) = plan_resync("billing", minutes_ago(35))
    assert planned.dead_letters == 1
    assert "caches: 1 dead letter of these facts stay" in " ".join(planned.sentences())


def test_parts_begin_anew_at_the_time_and_the_plan_says_up_to(read):
    StoredCursor.objects.update(base=read[2])
    for part in range(2):
        PartCursor.objects.create(
            reader="billing", stream="caches", by_field="cache_name", part=part, position=read[2 + 2 * part]
        )
    (planned,) = plan_resync("billing", minutes_ago(45))
    assert (planned.again.facts, planned.is_shared) == (3, True)
    assert "Up to 3 facts" in planned.sentences()[0]
    resync_reader("billing", minutes_ago(45))
    assert not PartCursor.objects.exists()
    assert StoredCursor.objects.get().base == read[2] - 1


def inserted_by_others() -> list[int]:
    numbers = append(1)
    stored()
    return numbers


def test_facts_ahead_of_an_open_append_count_for_their_writer_only(read):
    """A vector: the writer's facts above the base were handled, and the base waits for somebody's open append."""
    with held_open():
        with as_instance("other"):
            (ahead,) = inserted_by_others()
        StoredCursor.objects.update(base=read[-1], entries={"other": ahead})
        (planned,) = plan_resync("billing", minutes_ago(5))
        assert (planned.again.facts, planned.again.first) == (1, ahead)
        assert planned.move.now.position_of("other") == ahead - 1


def test_a_preview_counts_to_a_million_and_says_more(read, monkeypatch):
    monkeypatch.setattr(positions_by_time, "MOST_COUNTED", 2)
    (planned,) = plan_resync("billing", minutes_ago(35))
    assert "more than" in planned.sentences()[0]


def test_the_count_of_several_tables_is_exact_while_each_is_below_the_limit(monkeypatch):
    """A state event has a fact in each of two tables."""
    events = public_room().events
    persist_all(events)
    declaration, most = registry.get("events").declaration, len(events)
    monkeypatch.setattr(positions_by_time, "MOST_COUNTED", most)
    with connection.cursor() as cursor:
        found = positions_by_time.count_facts(cursor, declaration, VectorToken(0), VectorToken(2**40))
        assert (found.facts, found.is_whole) == (most, True)
        monkeypatch.setattr(positions_by_time, "MOST_COUNTED", most - 1)
        assert not positions_by_time.count_facts(cursor, declaration, VectorToken(0), VectorToken(2**40)).is_whole


def test_a_time_is_found_by_the_index_on_the_id(new_tables, read):
    with CaptureQueriesContext(connection) as asked, connection.cursor() as cursor:
        positions_by_time.position_before(cursor, stream().declaration, minutes_ago(35))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")  # as if it were large
        for query in asked.captured_queries:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on streams_cacheinvalidation" not in plan
            assert "Sort" not in plan
    assert len(asked) < 12


def test_the_command_previews_and_replays(read, run_manage):
    since = f"{minutes_ago(35):%Y-%m-%dT%H:%M:%S}"
    told = run_manage("resync", "reader", "billing", "--since", since, "--dry-run", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["again"] == 3
    assert "3 facts, from" in told.stderr
    assert "will be handled again" in told.stderr
    assert "by the database's clock" in told.stderr
    assert StoredCursor.objects.get().base == read[-1]
    done = run_manage("resync", "reader", "billing", "--since", since)
    assert (done.returncode, StoredCursor.objects.get().base) == (0, read[3] - 1), done.stderr
    refused = run_manage("resync", "reader", "billing", "--since", "yesterday evening")
    assert (refused.returncode, "is no time" in refused.stderr) == (2, True)
