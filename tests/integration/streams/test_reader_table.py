"""The table of readers, as connections, followers and Spark queries write it."""

from __future__ import annotations

import pytest
from django.db import connection

from streams.models import Reader
from streams.reading import reader_table
from streams.reading.reader_table import forget_readers, store_readers

pytestmark = pytest.mark.django_db

ROW = {"key": "k", "name": "n", "address": "here", "positions": {"caches": {"master": 7}}}


def store(kind="spark", process_id=1, **more):
    with connection.cursor() as cursor:
        store_readers(cursor, kind, process_id, [ROW | more], "server")
    return Reader.objects.get()


def age(**columns):
    """Set times back."""
    pairs = ", ".join(f"{name} = now() - interval '{back}'" for name, back in columns.items())
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE streams_reader SET {pairs}")
    return Reader.objects.get()


def test_what_is_missing_has_a_default():
    row = store()
    assert (row.kind, row.name, row.served_by, row.positions) == ("spark", "n", "server", {"caches": {"master": 7}})
    assert (row.bytes_in, row.lines_out, row.closed_at, row.close_reason) == (0, 0, None, "")


def test_figures_are_the_latest():
    store(bytes_in=5)
    row = store(bytes_in=9, positions={"caches": {"master": 8}})
    assert (row.bytes_in, row.positions) == (9, {"caches": {"master": 8}})


def test_what_waits_is_stored_and_zero_where_it_is_not_told():
    waits = {"waiting_lines": 7, "kernel_send_bytes": 8, "kernel_read_bytes": 9, "queued": {"caches": 3}}
    row = store(**waits)
    assert {name: getattr(row, name) for name in waits} == waits
    row = store()
    assert {name: getattr(row, name) for name in waits} == dict.fromkeys(waits, 0) | {"queued": {}}


def test_a_reason_closes_and_the_next_figures_open_again():
    assert store(close_reason="slow").closed_at is not None
    row = store()
    assert (row.closed_at, row.close_reason) == (None, "")


def test_the_same_process_stays_connected_since_when_it_was():
    store()
    since = age(connected_at="1 minute").connected_at
    assert store().connected_at == since


@pytest.mark.parametrize(("closed", "process_id"), [(True, 1), (False, 2)])
def test_one_that_comes_back_has_connected_anew(closed, process_id):
    store(close_reason="stopped" if closed else "")
    since = age(connected_at="1 minute").connected_at
    assert store(process_id=process_id).connected_at > since


def test_a_nul_in_a_name_is_replaced():
    assert store(name="a\0b").name == "a\ufffdb"


@pytest.mark.parametrize("kind", ["connection", "follower"])
@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ({"heartbeat_at": "31 days"}, 0),
        ({"closed_at": "2 hours"}, 0),
        ({"closed_at": "1 minute"}, 1),
        ({"heartbeat_at": "1 hour"}, 1),
    ],
)
def test_readers_without_a_cursor_are_forgotten_long_after_their_end(kind, times, kept):
    store(kind)
    age(**times)
    with connection.cursor() as cursor:
        forget_readers(cursor)
    assert Reader.objects.count() == kept


@pytest.mark.parametrize("days", ["6 days", "31 days", "400 days"])
def test_a_silent_query_is_known_until_an_operator_forgets_it(days):
    """Its cursor, in its checkpoint, is stored for ever. All was well after a month, and what it had not read was trimmed."""
    store("spark")
    age(heartbeat_at=days)
    with connection.cursor() as cursor:
        forget_readers(cursor)
    assert Reader.objects.count() == 1


def test_of_those_that_ended_only_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(reader_table, "CLOSED_READERS_KEPT", 2)
    with connection.cursor() as cursor:
        for key in "abcd":
            store_readers(cursor, "connection", 1, [ROW | {"key": key, "close_reason": "" if key == "a" else "gone"}])
        forget_readers(cursor)
    assert set(Reader.objects.values_list("key", flat=True)) == {"a", "c", "d"}
