"""The statistics of the live pipeline are a named reader: listed for as long as their cursors are, and counted once."""

from __future__ import annotations

import uuid
from datetime import timedelta
from importlib import import_module

import pytest
from django.db import connection, transaction
from django.utils import timezone

from events.models import Event
from pipeline.errors import QueryFailed
from pipeline.live.ledger import BatchOffsets, ledger_vectors, record_batch
from pipeline.live.statistics_table import STATISTICS, StatisticsTable
from pipeline.models import BatchLedger
from pipeline.models.statistics import READER
from replsite.live_rows.reading import read_snapshot
from replsite.metrics.cluster import families
from replsite.status.words import HealthWord
from streams import registry
from streams.errors import ReaderNameTaken
from streams.follow import forget_reader, resync_reader
from streams.models import Reader, StoredCursor, StreamPosition
from streams.reading.reader_table import forget_readers
from tests.support.waiting import wait_until
from tests.support.writing import store_positions

pytestmark = pytest.mark.django_db(transaction=True)


def append(count: int) -> dict[str, int]:
    """Appends events two hours ago. Returns the positions of the stream once they are stored."""
    events = [
        Event(
            event_id=f"${uuid.uuid4()}", room_id="!r", type="m.room.message", sender="@a:b", topological_ordering=1,
            origin_server_ts=1,
        )
        for _ in range(count)
    ]  # fmt: skip
    last = max(registry.get("events").append(*events))
    store_positions()
    assert last in positions().values()
    Event.objects.writable().update(received_at=timezone.now() - timedelta(hours=2))
    return positions()


def positions() -> dict[str, int]:
    return dict(StreamPosition.objects.filter(stream="events").values_list("instance_name", "position"))


def begin(table: StatisticsTable) -> dict[str, dict[str, int]]:
    with connection.cursor() as cursor:
        return table.begin(cursor)


def started() -> dict[str, int]:
    """Where a pipeline that starts now begins in the stream."""
    table = StatisticsTable("default")
    with table.held():
        return begin(table)["events"]


def batch(table: StatisticsTable, upto: dict[str, int], *, moves_cursors: bool = True) -> None:
    """What the query does with a micro-batch that ends at ``upto``."""
    with transaction.atomic(), connection.cursor() as cursor:
        offsets = BatchOffsets(0, ledger_vectors(cursor, STATISTICS), {"events": upto, "backfill": {}})
        if record_batch(cursor, STATISTICS, offsets) and moves_cursors:
            table.apply(cursor, {name: [] for name in ("room_id", "events", "history")}, offsets)


def ran(upto: dict[str, int]) -> None:
    """A pipeline that has read up to there, and was ended."""
    table = StatisticsTable("default")
    with table.held():
        begin(table)
        batch(table, upto)


def was_killed() -> None:
    """As if its process had been killed two hours ago."""
    past = timezone.now() - timedelta(hours=2)
    StoredCursor.objects.update(seen_at=past, moved_at=past, ended_at=None)
    Reader.objects.update(heartbeat_at=past, closed_at=None)
    BatchLedger.objects.update(applied_at=past)


def listed():
    return next((one for one in read_snapshot().readers if one.name == READER), None)


@pytest.mark.parametrize("killed", [True, False])
def test_one_that_is_away_is_listed_with_its_lag_until_it_is_forgotten(killed):
    ran(append(5))
    append(300)
    if killed:
        was_killed()
    else:
        StoredCursor.objects.update(ended_at=timezone.now() - timedelta(hours=2))
        Reader.objects.update(closed_at=timezone.now() - timedelta(hours=2))
    with connection.cursor() as cursor:
        forget_readers(cursor)
    snapshot, found = read_snapshot(), listed()
    assert (found.kind, found.runs, found.lag_facts, found.status.word) == ("spark", False, 300, "left behind")
    assert (
        "manage.py pipeline run" in found.status.sentence
        and "streams forget 'pipeline statistics'" in found.status.sentence
    )
    assert snapshot.health.word == HealthWord.WRONG
    shown = {family.name: family.samples for family in families(snapshot, synapse_names=False, server_name="x")}
    lags = {tuple(one.labels.values()): one.value for one in shown["replsite_reader_lag_facts"]}
    assert lags[READER, "events"] == 300
    forget_reader(READER)
    assert listed() is None and read_snapshot().health.word == HealthWord.WELL


def test_while_it_runs_it_is_shown_with_what_it_has_read():
    upto = append(5)
    table = StatisticsTable("default")
    with table.held():
        begin(table)
        batch(table, upto)
        wait_until(lambda: (row := listed()) is not None and row.runs and not row.lag_facts)
        with pytest.raises(ReaderNameTaken):
            forget_reader(READER)
    assert listed().status.word == "stopped"


def test_forgotten_it_goes_on_where_its_sums_end():
    upto = append(5)
    ran(upto)
    forget_reader(READER)
    assert started() == upto


def test_replayed_it_counts_no_fact_twice():
    upto = append(5)
    ran(upto)
    resync_reader(READER, timezone.now() - timedelta(days=1))
    assert StoredCursor.objects.get(stream="events").base < max(upto.values())
    assert started() == upto


def test_set_to_the_present_it_passes_over_facts():
    ran(append(5))
    upto = append(3)
    resync_reader(READER)
    assert started() == upto


def test_what_an_earlier_version_counted_meanwhile_is_not_counted_again():
    ran(append(5))
    upto = append(3)
    batch(StatisticsTable("default"), upto, moves_cursors=False)
    assert started() == upto
    assert listed().lag_facts == 0


def test_without_ledger_and_cursors_it_counts_from_the_beginning():
    ran(append(5))
    forget_reader(READER)
    BatchLedger.objects.all().delete()
    assert not any(started().values())


def test_an_error_is_stored_with_the_reader_of_the_query():
    upto = append(5)
    table = StatisticsTable("default")
    with pytest.raises(QueryFailed), table.held():
        begin(table)
        batch(table, upto)
        raise QueryFailed("a disk is full")
    assert listed().status.word == "failed"
    assert "a disk is full" in listed().status.sentence and "manage.py pipeline run" in listed().status.sentence


def test_a_pipeline_that_was_ended_before_the_upgrade_is_listed():
    upto = append(5)
    BatchLedger.objects.create(query=STATISTICS, batch_id=7, offsets={"events": upto, "backfill": {}})
    Reader.objects.create(key="spark:pipeline statistics", name=READER, kind="spark", closed_at=timezone.now())
    append(4)
    migration = import_module("migrations.pipeline.0010_statistics_reader").Migration
    with connection.cursor() as cursor:
        for operation in migration.operations:
            cursor.execute(operation.sql)
    (only,) = [one for one in read_snapshot().readers if one.name == READER]
    assert only.lag_facts == 4 and not only.runs
    assert started() == upto
