"""The ledger of live tables: every batch is applied once, in order, or refused."""

from __future__ import annotations

import json

import pytest
from django.db import connection, transaction

from pipeline.errors import LedgerMismatch
from pipeline.live.ledger import BatchOffsets, covers, ledger_vectors, read_offsets, record_batch, set_ledger
from pipeline.models import BatchLedger

pytestmark = pytest.mark.django_db

FIRST = BatchOffsets(0, {}, {"events": {"a": 5}})
SECOND = BatchOffsets(1, {"events": {"a": 5}}, {"events": {"a": 9, "b": 3}, "backfill": {"a": 2}})


def take(offsets, query="q"):
    with transaction.atomic(), connection.cursor() as cursor:
        return record_batch(cursor, query, offsets)


def held(query="q"):
    with connection.cursor() as cursor:
        return ledger_vectors(cursor, query)


def test_batches_follow_each_other():
    assert take(FIRST) and take(SECOND)
    assert held() == SECOND.end
    assert BatchLedger.objects.get().batches == 2


def test_a_repeated_batch_is_left_out():
    take(FIRST)
    assert not take(FIRST)
    assert BatchLedger.objects.get().batches == 1


def test_a_begin_is_no_batch():
    """A query that fails again and again, and adds nothing, must not look as if it got on."""
    take(FIRST)
    before = BatchLedger.objects.get()
    with transaction.atomic(), connection.cursor() as cursor:
        set_ledger(cursor, "q", {"events": {"a": 3}})
    after = BatchLedger.objects.get()
    assert held() == {"events": {"a": 3}}
    assert (after.batches, after.applied_at) == (before.batches, before.applied_at)


def test_a_batch_that_overlaps_is_refused():
    take(FIRST)
    with pytest.raises(LedgerMismatch, match=r"begins at \{'events': \{'a': 3\}\}"):
        take(BatchOffsets(7, {"events": {"a": 3}}, {"events": {"a": 8}}))
    assert held() == FIRST.end


def test_a_batch_beyond_a_gap_is_refused():
    take(FIRST)
    with pytest.raises(LedgerMismatch, match="start the query again"):
        take(BatchOffsets(3, {"events": {"a": 7}}, {"events": {"a": 9}}))


def test_a_gap_in_one_of_two_streams_is_refused():
    take(SECOND if take(FIRST) else FIRST)
    begins = {"events": {"a": 9, "b": 3}, "backfill": {"a": 1}}
    with pytest.raises(LedgerMismatch):
        take(BatchOffsets(2, begins, {"events": {"a": 10, "b": 3}, "backfill": {"a": 2}}))


def test_a_transaction_that_fails_leaves_the_ledger(monkeypatch):
    take(FIRST)
    with pytest.raises(RuntimeError), transaction.atomic(), connection.cursor() as cursor:
        record_batch(cursor, "q", SECOND)
        raise RuntimeError
    assert held() == FIRST.end


def test_queries_have_ledgers_of_their_own():
    take(FIRST)
    assert held("other") == {}
    assert take(FIRST, "other")


@pytest.mark.parametrize(
    ("upper", "lower", "answer"),
    [
        ({}, {}, True),
        ({}, {"s": {"w": 0}}, True),
        ({"s": {"w": 4}}, {"s": {"w": 4}}, True),
        ({"s": {"w": 4}}, {"s": {"w": 5}}, False),
        ({"s": {"w": 4}}, {"t": {"w": 1}}, False),
        ({"s": {"w": 4}}, {"s": {"w": 4, "v": 1}}, False),
    ],
)
def test_vectors_are_compared_writer_by_writer(upper, lower, answer):
    assert covers(upper, lower) is answer


def write_log(folder, *batches):
    (folder / "offsets").mkdir()
    for number, lines in enumerate(batches):
        shown = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *shown]))


def test_offsets_are_those_that_spark_has_logged(tmp_path):
    write_log(tmp_path, [{"a": 2}, {"b": 1}], [{"a": 7}, {"b": 1}])
    streams = ("events", "backfill")
    assert read_offsets(tmp_path, 1, streams, {}) == BatchOffsets(
        1, {"events": {"a": 2}, "backfill": {"b": 1}}, {"events": {"a": 7}, "backfill": {"b": 1}}
    )
    first = {"events": {"a": 1}}
    assert read_offsets(tmp_path, 0, streams, first).start == first


def test_a_stream_that_has_not_begun_stays_where_it_was(tmp_path):
    write_log(tmp_path, ["-", {"b": 1}])
    first = {"events": {"a": 1}}
    found = read_offsets(tmp_path, 0, ("events", "backfill"), first)
    assert found.end == {"events": {"a": 1}, "backfill": {"b": 1}}


def test_the_epoch_in_an_offset_is_no_position(tmp_path):
    write_log(tmp_path, [{"a": 2, "in epoch": "kiwi"}])
    assert read_offsets(tmp_path, 0, ("events",), {}).end == {"events": {"a": 2}}
