"""A stream that is stuck over many facts: bounded memory, one alarm, and exact again from the tables."""

from __future__ import annotations

import pytest

from streams import registry
from streams.core import tracker
from streams.models import StreamPosition
from streams.reading import overflow_replay
from streams.writing import lease
from streams.writing.process import current_writer
from tests.support.waiting import wait_until
from tests.support.writing import append, fact, linear, session, stored, stream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def silent():
    """A living writer that holds the stream back: its locks are held, an ID is reserved, and it says nothing."""
    with session() as cursor:
        lease.take(cursor, "silent", lease.Identity("far", 1, "x"), 1.0)
        lease.store_entry(cursor, registry.get("caches"), "silent", 1)
        cursor.execute("SELECT nextval('streams_cacheinvalidation_seq')")
        yield cursor


@pytest.fixture
def crowd(monkeypatch, silent) -> list[int]:
    """Single facts, far more than are kept."""
    monkeypatch.setattr(tracker, "KNOWN_DONE_LIMIT", 10)
    monkeypatch.setattr(overflow_replay, "REPLAY_IDS", 7)
    return [append()[0] for _ in range(60)]


def alarms(caplog) -> list[str]:
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    return [record.getMessage() for record in records if "stuck_over_many_facts" in record.getMessage()]


def test_memory_is_bounded_and_the_alarm_names_the_slowest_writer(crowd, caplog):
    found = current_writer().trackers["caches"]
    wait_until(lambda: found.known_done_cuts)
    assert found.known_done_size <= 10
    wait_until(lambda: alarms(caplog))
    append()
    (alarm,) = alarms(caplog)
    assert "'slowest_writer': 'silent'" in alarm


def test_linear_position_runs_over_dropped_ids_when_it_goes_on(crowd, silent):
    """The slow writer moves on by one fact only: what lies above are single facts of ours, most of them dropped."""
    found = current_writer().trackers["caches"]
    wait_until(lambda: found.known_done_cuts)
    its_fact = crowd[0] - 1
    assert found.linear < its_fact
    silent.execute("UPDATE streams_streamposition SET position = %s WHERE instance_name = 'silent'", [its_fact])
    silent.execute("SELECT pg_notify('replsite_streams', %s)", [f"caches silent {its_fact}"])
    wait_until(lambda: found.linear == crowd[-1], 10)
    assert stored()["silent"].position == its_fact


def test_metric_column_tells_how_many_are_kept(monkeypatch, silent):
    monkeypatch.setattr("streams.writing.heartbeat.MANY_IDS", 10)
    for _ in range(35):
        append()
    row = StreamPosition.objects.filter(instance_name="master")
    wait_until(lambda: row.values_list("known_done_ids", flat=True).get() >= 30, 10)


def test_ids_between_are_those_of_committed_facts():
    taken = append(3)
    with stream().reserve(2) as reservation:
        reservation.write(fact())
    with session() as cursor:
        assert stream().ids_between(cursor, taken[0], reservation.ids[-1]) == [*taken[1:], reservation.ids[0]]
        assert stream().ids_between(cursor, 0, taken[0]) == taken[:1]


def test_a_stream_that_is_not_stuck_asks_nothing(django_assert_num_queries):
    append()
    with session() as cursor, django_assert_num_queries(0):
        overflow_replay.look_after(cursor, current_writer().trackers)
    assert linear() >= 1
