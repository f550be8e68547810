"""A connection lives no longer than its database: after a restore or a fail-over nobody is left at positions of before.

The danger: the new database lacks the newest facts and gives their IDs out again. A server that went on from what it had said
would never send those, since they lie below it.
"""

from __future__ import annotations

import asyncio

import pytest
from django.db import connections

from streams import epochs
from streams.conf import stream_settings
from streams.models import StreamPosition
from streams.replication.errors import DatabaseRestored
from streams.replication.protocol.connection import CloseReason
from streams.replication.server.broadcaster import Broadcaster
from tests.support.async_waiting import wait_for
from tests.support.memory_client import MemoryClient
from tests.support.writing import give_out, session, terminate

pytestmark = pytest.mark.django_db(transaction=True)
_FACT = (
    "SET LOCAL streams.maintenance = on; "
    "INSERT INTO streams_cacheinvalidation (instance_name, stream_id, cache_name, keys) VALUES ('north', %s, 'test', '{k}')"
)


def write(position: int) -> None:
    """A fact of north, and where north is then."""
    give_out(position)
    with session() as cursor:
        cursor.execute(_FACT, [position])
    StreamPosition.objects.update_or_create({"position": position}, stream="caches", instance_name="north")


def restore(position: int) -> None:
    """The database is another one, which lacks what was above that position. 0: also the stream's positions."""
    found = StreamPosition.objects.filter(stream="caches")
    found.update(position=position) if position else found.delete()
    with session() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation WHERE stream_id > %s", [position]
        )
        epochs.begin_epoch(cursor, "test")


class Served:
    """A broadcaster, and those who follow it."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self.broadcaster = broadcaster

    def client(self) -> MemoryClient:
        peer = MemoryClient()
        self.broadcaster.join(peer)
        self.broadcaster.answer_replicate(peer)
        return peer

    def server_process(self) -> int:
        return int(self.broadcaster._reader._connection._connection.info.backend_pid)


@pytest.fixture
def served(transactional_db, positions_by_hand):
    for position in (5, 7):
        write(position)
    with session() as cursor:
        epochs.current_epoch(cursor)
    found = Served(Broadcaster(stream_settings()))
    yield found
    found.broadcaster._reader_rows.close()
    found.broadcaster._reader.close()


def got(peer: MemoryClient) -> list[bytes]:
    lines = peer.encode_lines()
    return [b" ".join(line.split()[:4]) for line in lines if line.split()[1] == b"caches"]


async def in_thread(work, *given) -> None:
    def run() -> None:
        try:
            work(*given)
        finally:
            connections.close_all()

    await asyncio.to_thread(run)


async def test_after_a_restore_clients_begin_where_the_new_database_is(served):
    await served.broadcaster.start()
    try:
        peer = served.client()
        assert got(peer) == [b"POSITION caches north 7"]
        await in_thread(restore, 5)
        await in_thread(terminate, served.server_process())
        await wait_for(lambda: not peer.is_open)
        assert peer.connection.close_reason is CloseReason.RESTORED
        served.broadcaster.leave(peer)
        again = served.client()
        assert got(again) == [b"POSITION caches north 5"]
        await in_thread(write, 6)
        await wait_for(lambda: b"RDATA caches north 6" in got(again))
    finally:
        await served.broadcaster.stop()


@pytest.mark.parametrize("position", [5, 0])
async def test_a_restore_that_ends_no_session_and_fails_no_statement_is_noticed(served, position):
    """A dump that is loaded in one transaction. The facts that got their IDs again reached no follower, old or new."""
    await served.broadcaster.start()
    try:
        peer = served.client()
        await in_thread(restore, position)
        await wait_for(lambda: not peer.is_open)
        assert peer.connection.close_reason is CloseReason.RESTORED
        served.broadcaster.leave(peer)
        again = served.client()
        assert got(again) == [b"POSITION caches north 5" if position else b"POSITION caches master 1"]
        await in_thread(write, 6)
        await wait_for(lambda: b"RDATA caches north 6" in got(again))
    finally:
        await served.broadcaster.stop()


def test_a_stream_whose_only_row_an_operator_deleted_costs_no_statement_in_each_round(served, monkeypatch):
    asked, current = [], epochs.current_epoch
    monkeypatch.setattr("streams.epochs.current_epoch", lambda cursor: asked.append(1) or current(cursor))
    reader = served.broadcaster._reader
    reader.snapshot()
    StreamPosition.objects.filter(stream="caches").delete()
    for _ in range(20):
        reader.snapshot()
    assert 2 <= len(asked) < 20, "at the start, and once a second"


def test_an_epoch_that_begins_after_the_positions_went_back_is_noticed(served, monkeypatch):
    monkeypatch.setattr("streams.replication.server.broadcast_reader.ASK_AGAIN_SECONDS", 0.0)
    reader = served.broadcaster._reader
    reader.snapshot()
    StreamPosition.objects.filter(stream="caches").update(position=5)
    assert reader.snapshot()["caches"]["north"].position == 5
    with session() as cursor:
        epochs.begin_epoch(cursor, "test")
    with pytest.raises(DatabaseRestored):
        reader.snapshot()


async def test_a_lost_connection_alone_costs_nobody_his(served):
    await served.broadcaster.start()
    try:
        peer = served.client()
        await in_thread(terminate, served.server_process())
        await in_thread(write, 8)
        await wait_for(lambda: b"RDATA caches north 8" in got(peer))
        assert peer.is_open
    finally:
        await served.broadcaster.stop()


async def test_what_began_on_a_standby_is_looked_at_again_when_it_is_none_any_more(served, monkeypatch):
    backlog = served.broadcaster._reader
    answers = iter([True, True, False])
    monkeypatch.setattr("streams.epochs.is_standby", lambda cursor: next(answers))
    for sure in (False, False, True, True):
        await in_thread(backlog.snapshot)
        assert backlog._knows_epoch is sure
