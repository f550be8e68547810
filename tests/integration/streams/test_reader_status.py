"""Named readers are told of for as long as their cursors are stored: failed, left behind, stopped, waiting, with parked facts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from replsite.live_rows.readers import MOST_READERS
from replsite.live_rows.reading import read_snapshot
from replsite.metrics.cluster import families
from replsite.status.trends import History
from replsite.status.words import HealthWord
from streams.catalog.models import CacheInvalidation
from streams.errors import EpochChanged, FactsParked, HandlerFailed, ReaderNameTaken, ResyncNeeded, UnknownReader
from streams.follow import (
    Begin,
    Chunk,
    Handler,
    OnFailure,
    Reader,
    View,
    drop_parked,
    forget_reader,
    resync_reader,
)
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import ParkedFact, StoredCursor, StreamPosition
from streams.models import Reader as ReaderRow
from streams.reading.reader_table import forget_readers
from streams.testing import forget_writers
from tests.support.effects import Running, effects_table, running, take
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, held_open, ids, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "correct-horse"


@pytest.fixture(autouse=True)
def _table(settings) -> Iterator[None]:
    settings.REPLSITE_HEARTBEAT_SECONDS = 0.25
    settings.REPLSITE_BLOCKED_AFTER_SECONDS = 0.3
    settings.REPLSITE_STUCK_AFTER_SECONDS = 0.3
    with effects_table():
        yield


def refuse(chunk: Chunk) -> None:
    raise ValueError(f"cannot reach postgres://ann:{SECRET}@db/x, password={SECRET}" + " and so on" * 50)


def handler(function=take, **options) -> Handler:
    options.setdefault("begin", Begin.OLDEST)
    options.setdefault("retry_seconds", 0.01)
    options.setdefault("attempts", 2)
    return Handler("caches", "r", function, **options)


def run(*handlers: Handler) -> int:
    wait_for_linear(ids()[-1])
    return Reader("r", handlers).catch_up()


def fail(count: int = 5) -> None:
    """A reader that reads two facts, then meets one that its handler refuses."""
    append(2)
    run(handler())
    append(count)
    with pytest.raises(HandlerFailed):
        run(handler(refuse))


def long_ago(**columns: float) -> None:
    """As if it had been so many seconds ago, and the facts older."""
    if columns:
        StoredCursor.objects.update(**{name: timezone.now() - timedelta(seconds=s) for name, s in columns.items()})
    CacheInvalidation.objects.writable().update(received_at=timezone.now() - timedelta(hours=2))


def reader():
    (found,) = [one for one in read_snapshot().readers if one.name == "r"]
    return found


def status():
    return reader().status


def test_a_reader_that_failed_is_wrong_with_its_lag_and_its_error():
    fail()
    found, health = reader(), read_snapshot().health
    assert (found.status.word, found.runs, found.lag_facts) == ("failed", False, 5)
    assert "ValueError: cannot reach" in found.status.sentence
    assert "manage.py runhandlers r" in found.status.sentence
    assert health.word == HealthWord.WRONG
    assert health.sentence.startswith("Follower r on caches failed")


def test_the_error_is_bounded_and_holds_no_secret():
    fail()
    stored = StoredCursor.objects.get()
    assert 100 < len(stored.error) <= 500
    assert SECRET not in stored.error + status().sentence + ReaderRow.objects.get(name="r").error
    assert stored.ended_at is not None


def test_it_stays_for_ever():
    fail()
    long_ago(seen_at=90 * 86_400, ended_at=90 * 86_400, moved_at=90 * 86_400)
    ReaderRow.objects.update(closed_at=timezone.now() - timedelta(days=90))
    with session() as cursor:
        forget_readers(cursor)
    assert status().word == "failed"
    ReaderRow.objects.all().delete()  # an older version of the program
    assert (status().word, reader().lag_facts) == ("failed", 5)


def test_a_reader_that_fails_again_was_never_well_in_between():
    fail()
    words = set()

    def look_and_refuse(chunk: Chunk) -> None:
        words.add(status().word)
        raise ValueError

    with pytest.raises(HandlerFailed):
        run(handler(look_and_refuse))
    assert words == {"failed"}


def test_resumed_it_is_well():
    fail()
    run(handler())
    assert status().word == "stopped"
    assert read_snapshot().health.word == HealthWord.WELL
    with running(handler()):
        wait_until(lambda: status().word in ("current", "idle"))


def test_a_reader_whose_facts_were_trimmed_is_told_to_be_set_anew():
    fail(50)
    with session() as cursor:
        request = TrimRequest(stream(), Keep(facts=1), ignored=("r",), settle_seconds=0)
        assert list(trim(cursor, request, pause=lambda _: None))[-1].rows
    with pytest.raises(ResyncNeeded):
        run(handler())
    found = status()
    assert (found.word, found.command) == ("failed", "manage.py resync reader r")
    resync_reader("r")
    assert status().word == "stopped"
    assert read_snapshot().health.word == HealthWord.WELL


def test_a_stopped_reader_whose_unread_facts_were_trimmed_has_not_read_everything():
    """Nothing that it lacks is there any more, so it had no lag."""
    append(2)
    run(handler())
    wait_for_linear(append(3)[-1])
    with session() as cursor:
        request = TrimRequest(stream(), Keep(facts=0), ignored=("r",), settle_seconds=0)
        assert list(trim(cursor, request, pause=lambda _: None))[-1].rows
    for ended in ({}, {"ended_at": None, "seen_at": timezone.now() - timedelta(days=9)}):
        StoredCursor.objects.update(**ended)
        ReaderRow.objects.update(
            heartbeat_at=timezone.now() - timedelta(days=9), **({"closed_at": None} if ended else {})
        )
        found = status()
        assert "read everything" not in found.sentence and "were trimmed" in found.sentence
        assert (found.severity.name, found.command) == ("WRONG", "manage.py resync reader r")
    resync_reader("r")
    assert "were trimmed" not in status().sentence


def test_a_silent_query_whose_unread_facts_were_trimmed_is_not_said_to_go_on():
    wait_for_linear(append(5)[-1])
    ReaderRow.objects.create(
        key="spark:q", name="r", kind="spark", positions={"caches": {"master": ids()[1]}},
        heartbeat_at=timezone.now() - timedelta(days=9),
    )  # fmt: skip
    assert "it goes on where it was" in status().sentence
    with session() as cursor:
        request = TrimRequest(stream(), Keep(facts=0), settle_seconds=0)
        assert list(trim(cursor, request, pause=lambda _: None))[-1].rows
    assert "it goes on where it was" not in status().sentence and "were trimmed" in status().sentence


def test_a_crowd_of_connections_hides_no_query_and_no_follower():
    """A query that was killed was on no list as soon as 5,000 connections were open."""
    rows = [ReaderRow(key=f"c{n}", name=f"c{n}", kind="connection", positions={}) for n in range(MOST_READERS)]
    ReaderRow.objects.bulk_create(rows)
    long = timezone.now() - timedelta(hours=1)
    for kind in ("spark", "follower"):
        ReaderRow.objects.create(key=f"{kind}:q", name=kind, kind=kind, positions={}, heartbeat_at=long)
    assert {one.kind: one.status.word for one in read_snapshot().readers if one.kind != "connection"} == {
        "spark": "gone", "follower": "gone",
    }  # fmt: skip


def test_one_that_a_timer_runs_is_left_behind_after_its_period(settings):
    """Health gave 503 between any two runs of a reader that runs every five minutes."""
    settings.REPLSITE_READER_PERIODS = {"r": 300}
    append(2)
    run(handler())
    append(7)
    wait_for_linear(ids()[-1])
    long_ago(ended_at=310)
    assert (status().word, status().severity.name) == ("stopped", "NOTE")
    long_ago(ended_at=400)
    assert (status().word, status().severity.name) == ("left behind", "WRONG")


def test_one_that_nobody_runs_is_left_behind():
    append(2)
    run(handler())
    assert (status().word, status().severity.name) == ("stopped", "FINE")
    append(7)
    wait_for_linear(ids()[-1])
    assert (status().word, status().severity.name) == ("stopped", "NOTE"), "it may come at any moment"
    long_ago(ended_at=100)
    found = reader()
    assert (found.status.word, found.status.severity.name, found.lag_facts) == ("left behind", "WRONG", 7)
    assert "manage.py streams forget r" in found.status.sentence
    with running(handler()):
        wait_until(lambda: status().word in ("current", "idle"))


@pytest.mark.parametrize("sign", [-1, 1], ids=["before", "ahead, since the clock was set back"])
def test_one_that_was_killed_is_gone_and_then_left_behind(sign):
    append(2)
    run(handler())
    append()
    wait_for_linear(ids()[-1])
    short, long = sign * timedelta(seconds=5), sign * timedelta(seconds=100)
    StoredCursor.objects.update(ended_at=None, seen_at=timezone.now() + short)
    ReaderRow.objects.filter(name="r").update(closed_at=None, heartbeat_at=timezone.now() + short)
    assert status().word == "gone"
    long_ago()
    StoredCursor.objects.update(seen_at=timezone.now() + long)
    ReaderRow.objects.filter(name="r").update(heartbeat_at=timezone.now() + long)
    assert status().word == "left behind"
    ReaderRow.objects.filter(name="r").update(heartbeat_at=timezone.now())
    assert status().word != "left behind", "it shows life: what its cursor says is of before"


def test_a_reader_that_the_settings_want_is_missed_though_it_has_read_everything(settings):
    settings.REPLSITE_READERS = ["r"]
    append(2)
    run(handler())
    long_ago(ended_at=100)
    assert (status().word, status().severity.name) == ("stopped", "WARNING")


def test_a_stream_that_the_running_reader_does_not_follow_any_more_is_left_behind():
    append(2)
    run(handler(), Handler("events", "r", take))
    StoredCursor.objects.create(reader="r", stream="backfill", base=1, lease=1)
    append(3)
    wait_for_linear(ids()[-1])
    with running(Handler("events", "r", take)):
        wait_until(lambda: reader().runs and ReaderRow.objects.get(name="r").positions.keys() == {"events"})
        long_ago(moved_at=100)
        words = {view.stream: view.status.word for view in reader().streams}
    assert words["caches"] == "left behind"


def test_parked_facts_are_told_until_they_are_retried_or_dropped():
    append(3)
    assert run(handler(refuse, on_failure=OnFailure.PARK)) == 0
    found, snapshot = reader(), read_snapshot()
    (view,) = found.streams
    assert (found.status.word, view.parked_facts, view.lag_facts) == ("parking", 3, 0)
    assert "manage.py parked list r" in found.status.sentence
    assert SECRET not in found.status.sentence
    assert snapshot.health.word == HealthWord.LOOK
    shown = {
        family.name: [sample.value for sample in family.samples]
        for family in families(snapshot, synapse_names=False, server_name="x")
    }
    assert shown["replsite_reader_parked_facts"] == [3]
    drop_parked("r")
    assert read_snapshot().health.word == HealthWord.WELL


def test_facts_that_wait_behind_a_parked_one_do_not_hide_its_error():
    append(3)
    run(handler(refuse, on_failure=OnFailure.PARK))
    ParkedFact.objects.filter(token__gt=ParkedFact.objects.earliest("token").token).update(
        attempts=0, error="It waits."
    )
    sentence = reader().status.sentence
    assert "cannot reach" in sentence
    assert "It waits." not in sentence


@pytest.mark.parametrize(("view", "word"), [(View.LINEAR, "waiting"), (View.WRITER, "current")])
def test_a_linear_reader_waits_for_a_blocked_writer_and_is_not_called_stuck(view, word):
    append(2)
    wait_for_linear(ids()[-1])
    with running(handler(view=view)), held_open() as held:
        later = append(3)  # of another writer, which is ahead
        CacheInvalidation.objects.writable().filter(stream_id__in=later).update(instance_name="other")
        at = {"position": later[-1], "last_write_position": later[-1]}
        StreamPosition.objects.create(stream="caches", instance_name="other", **at)
        CacheInvalidation.objects.writable().filter(stream_id__in=later).update(
            received_at=timezone.now() - timedelta(minutes=1)
        )
        wait_until(lambda: read_snapshot().stream("caches").writers[0].status.word == "blocked")
        history = History()

        def judged():
            (found,) = [one for one in read_snapshot(history).readers if one.name == "r"]
            return found.status.word in (word, "idle") and (found.streams[0].unmoved_seconds or 0) > 0.5 and found

        found = wait_until(judged)
        snapshot = read_snapshot(history)
        assert held
    if view is View.LINEAR:
        assert (found.status.severity.name, found.lag_facts) == ("NOTE", 3)
        assert "holds the stream back" in found.status.sentence
        assert [problem.verdict.word for problem in snapshot.health.problems] == ["blocked", "waiting"]


# --- forgetting -------------------------------------------------------------------------------------------------------


def test_a_reader_that_was_forgotten_is_told_of_no_more():
    fail()
    assert [one.stream for one in forget_reader("r", by="ann")] == ["caches"]
    snapshot = read_snapshot()
    assert [one.name for one in snapshot.readers] == []
    assert snapshot.health.word == HealthWord.WELL
    with pytest.raises(UnknownReader):
        forget_reader("r")


def test_one_stream_of_a_reader_can_be_forgotten():
    append(2)
    run(handler(), Handler("events", "r", take))
    assert [one.stream for one in forget_reader("r", "caches")] == ["caches"]
    assert [view.stream for view in reader().streams] in (["events"], [])
    with pytest.raises(UnknownReader, match="of events"):
        forget_reader("r", "caches")


def test_a_reader_that_runs_is_not_forgotten():
    append(1)
    with running(handler()), pytest.raises(ReaderNameTaken):
        forget_reader("r")
    assert StoredCursor.objects.count() == 1


def test_a_reader_with_parked_facts_is_not_forgotten():
    append(2)
    run(handler(refuse, on_failure=OnFailure.PARK))
    with pytest.raises(FactsParked, match=r"manage\.py parked drop r --all"):
        forget_reader("r")
    drop_parked("r")
    assert len(forget_reader("r")) == 1


def set_back(to: int) -> None:
    """The stream is as it was, by hand: facts, positions and the sequence; the epoch stays."""
    forget_writers()
    with session() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation WHERE stream_id > %s", [to]
        )
        cursor.execute("UPDATE streams_streamposition SET position = %s", [to])
        cursor.execute("SELECT setval(%s, %s)", [stream().declaration.sequence, to])


def test_a_reader_above_the_sequence_is_wrong_and_told_what_to_do():
    """It would pass over the facts that get the IDs up to its cursor, and was called idle."""
    append(5)
    run(handler())
    old, kept = ids()[-1], ids()[1]
    set_back(kept)
    found = status()
    assert (found.word, found.command) == ("failed", "manage.py resync reader r")
    assert f"cursor is at {old}" in found.sentence and "check_streams" in found.sentence
    append()
    with pytest.raises(EpochChanged, match=f"cursor is at {old}, .*manage.py resync reader r"):
        run(handler())
    assert status().word == "failed"
    set_back(kept)
    resync_reader("r")
    append(2)
    assert run(handler()) == 2
    assert read_snapshot().health.word == HealthWord.WELL


def test_a_reader_that_runs_when_its_stream_is_set_back_ends():
    append(5)
    runs = Running(handler(), name="r")
    runs.thread.start()
    runs.wait_for_positions()
    wait_until(lambda: StoredCursor.objects.get(reader="r").base == ids()[-1])
    set_back(ids()[1])
    runs.thread.join(DEADLINE_SECONDS)
    runs.reader.stop()
    assert isinstance(runs.error, EpochChanged)
    assert status().word == "failed"
