"""Reading a piece of a stream as executors do: the rows, and the connection that is kept for the next piece."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from pipeline.source import read_rows
from pipeline.source.filters import Condition
from pipeline.source.offsets import pieces
from pipeline.source.read_rows import ReadParameters, read_piece
from streams import registry
from streams.catalog.models import CacheInvalidation, Receipt
from streams.db.driver import dsn
from streams.errors import ResyncNeeded
from tests.support.writing import cut

pytestmark = pytest.mark.django_db(transaction=True)
NAMES = ("keys", "token", "received_at_ms", "fact_table", "writer", "cache_name")


@pytest.fixture(autouse=True)
def kept():
    yield read_rows._kept
    for _, one in read_rows._kept:
        one.close()
    read_rows._kept.clear()


@pytest.fixture
def ids():
    return registry.get("caches").append(
        *(CacheInvalidation(cache_name=f"c{n}", keys=None if n else ["k"]) for n in range(6))
    )


def piece_of(ids, writer="test"):
    (piece,) = pieces({writer: (ids[0] - 1, ids[-1])}, [])
    return piece


@pytest.fixture
def piece(ids):
    return piece_of(ids, CacheInvalidation.objects.first().instance_name)


def rows(piece, **more):
    return [
        row for batch in read_piece(ReadParameters(dsn(), "caches", NAMES, **more), piece) for row in batch.to_pylist()
    ]


def test_rows_have_the_columns_that_were_asked_for_by_ascending_tokens(ids, piece):
    found = rows(piece)
    fact = CacheInvalidation.objects.get(stream_id=ids[0])
    assert found[0] == {
        "keys": ["k"],
        "token": ids[0],
        "received_at_ms": int(fact.received_at.timestamp() * 1000),
        "fact_table": "streams_cacheinvalidation",
        "writer": fact.instance_name,
        "cache_name": "c0",
    }
    assert [(row["token"], row["keys"]) for row in found[1:]] == [(token, None) for token in ids[1:]]


def test_conditions_are_kept(ids, piece):
    assert [row["token"] for row in rows(piece, conditions=(Condition("cache_name", "=", ("c3",)),))] == [ids[3]]


def test_rows_come_in_batches_of_bounded_size(monkeypatch, ids, piece):
    monkeypatch.setattr(read_rows, "_BATCH_BYTES", 1)
    assert [batch.num_rows for batch in read_piece(ReadParameters(dsn(), "caches", NAMES), piece)] == [1] * 6


def test_json_text_comes_as_it_is_stored():
    text = json.dumps({"b": [1], "a": "ü"}, separators=(",", ":"))
    registry.get("receipts").append(
        Receipt(room_id="!r", receipt_type="m.read", user_id="@u", event_id="$e", data=text)
    )
    fact = Receipt.objects.get()
    found = read_piece(ReadParameters(dsn(), "receipts", ("data",)), piece_of([fact.stream_id], fact.instance_name))
    assert [row["data"] for batch in found for row in batch.to_pylist()] == [text]


def test_the_connection_is_kept_for_the_next_piece(kept, piece):
    rows(piece)
    first = kept[0][1]
    rows(piece)
    assert kept == [(dsn(), first)]


def test_a_connection_that_the_database_ended_is_made_anew(kept, piece):
    rows(piece)
    assert cut("replsite spark reads") == 1
    assert len(rows(piece)) == 6


def test_a_connection_to_another_database_is_not_kept_beside_it(kept, piece):
    rows(piece)
    (other,) = [f"{dsn()} options='-c statement_timeout=60000'"]
    assert sum(batch.num_rows for batch in read_piece(ReadParameters(other, "caches", NAMES), piece)) == 6
    assert [one for one, _ in kept] == [other]


def test_a_piece_that_is_left_in_the_middle_leaves_no_connection(monkeypatch, kept, piece):
    monkeypatch.setattr(read_rows, "_BATCH_BYTES", 1)
    reading = read_piece(ReadParameters(dsn(), "caches", NAMES), piece)
    next(reading)
    reading.close()
    assert kept == []


def test_facts_that_were_trimmed_are_missed_by_who_must_have_them_all(ids, piece):
    writer = piece.bounds[0].writers[0]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO streams_lowwatermark (stream, position, writers) VALUES ('caches', %s, %s)",
            [ids[2], json.dumps({writer: ids[2]})],
        )
    assert len(rows(piece)) == 6
    with pytest.raises(ResyncNeeded, match=f"facts up to {ids[2]} were trimmed"):
        rows(piece, unbroken=True)
