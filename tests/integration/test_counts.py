"""The ledger of a live table: every batch is applied once, in order, or refused."""

from __future__ import annotations

import json

import pytest
from django.db import connection, transaction

from pipeline.counts import QUERY, BatchOffsets, apply_batch, ledger_vector, read_offsets
from pipeline.errors import LedgerMismatch
from pipeline.models import BatchLedger, RoomCount

pytestmark = pytest.mark.django_db

FIRST = BatchOffsets(0, {}, {"a": 5})
SECOND = BatchOffsets(1, {"a": 5}, {"a": 9, "b": 3})


def apply(offsets, *rooms):
    with transaction.atomic(), connection.cursor() as cursor:
        return apply_batch(cursor, offsets, rooms)


def counts():
    return dict(RoomCount.objects.values_list("room_id", "events"))


def test_batches_add_up():
    assert apply(FIRST, ("!r", 4, 5), ("!s", 1, 3)) and apply(SECOND, ("!r", 2, 8))
    assert counts() == {"!r": 6, "!s": 1}
    assert RoomCount.objects.get(room_id="!r").last_position == 8


def test_a_repeated_batch_is_skipped():
    apply(FIRST, ("!r", 4, 5))
    assert not apply(FIRST, ("!r", 4, 5))
    assert counts() == {"!r": 4}


def test_a_batch_of_another_checkpoint_that_overlaps_is_refused():
    apply(FIRST, ("!r", 4, 5))
    with pytest.raises(LedgerMismatch, match=r"begins at \{'a': 3\}"):
        apply(BatchOffsets(7, {"a": 3}, {"a": 8}), ("!r", 5, 8))
    assert counts() == {"!r": 4}


def test_a_batch_beyond_a_gap_is_refused():
    apply(FIRST)
    with pytest.raises(LedgerMismatch):
        apply(BatchOffsets(3, {"a": 7}, {"a": 9}))


def test_a_failed_transaction_leaves_table_and_ledger_together(monkeypatch):
    apply(FIRST, ("!r", 4, 5))
    with pytest.raises(RuntimeError), transaction.atomic(), connection.cursor() as cursor:
        apply_batch(cursor, SECOND, [("!r", 2, 8)])
        raise RuntimeError
    assert counts() == {"!r": 4}
    assert BatchLedger.objects.get().offsets == {"a": 5}


def test_a_table_that_never_ran_begins_at_nothing():
    with connection.cursor() as cursor:
        assert ledger_vector(cursor, QUERY) == {}


def test_offsets_are_those_that_spark_has_logged(tmp_path):
    log = tmp_path / "offsets"
    log.mkdir()
    for number, vector in enumerate(({"a": 2}, {"a": 7})):
        (log / str(number)).write_text("v1\n{}\n" + json.dumps(vector))
    assert read_offsets(tmp_path, 1, {}) == BatchOffsets(1, {"a": 2}, {"a": 7})
    assert read_offsets(tmp_path, 0, {"a": 1}) == BatchOffsets(0, {"a": 1}, {"a": 2})
