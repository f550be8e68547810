"""Whichever thread makes a round, and whatever fails: a writer that came back is known before what another one wrote after it.

The danger: a writer comes back and writes a fact, another one writes the next. If the one that came back were taken for retired,
followers would get to know that it has nothing up to there, and its fact would never be read.
"""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection

from streams.conf import stream_settings
from streams.db.driver import OperationalError
from streams.models import StreamPosition
from streams.replication.server import broadcast_reader
from streams.replication.server.broadcaster import Broadcaster
from tests.support.memory_client import MemoryClient
from tests.support.writing import give_out

pytestmark = pytest.mark.django_db(transaction=True)
COMES_BACK = WRITES_THE_NEXT = ["caches"]
_FACT = (
    "SET LOCAL streams.maintenance = on; "
    "INSERT INTO streams_cacheinvalidation (instance_name, stream_id, cache_name, keys) VALUES (%s, %s, 'test', '{k}')"
)
FACTS = [b"RDATA caches north 7", b"RDATA caches south 6"]


class Heard:
    """A broadcaster that is told by hand what its listener hears, and one client of it."""

    def __init__(self) -> None:
        self.broadcaster = Broadcaster(stream_settings())
        self.broadcaster._announcer.start(self.broadcaster._reader.snapshot())
        self.peer = MemoryClient()
        self.broadcaster.join(self.peer)

    async def hear(self, *notifications: str) -> None:
        """As the listener's thread does; then the loop does what it was asked to."""
        self.broadcaster._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.broadcaster._notified, list(notifications))
        await asyncio.sleep(0)

    async def hear_beside_a_round(self, *notifications: str) -> None:
        """While another thread is at a round."""
        with self.broadcaster._in_round:
            await self.hear(*notifications)

    async def facts(self) -> list[bytes]:
        """Everything that the client was sent, after whatever is still to be done."""
        while await self.broadcaster._round(self.broadcaster._pop_moved()):
            pass
        lines = self.peer.encode_lines()
        return sorted(b" ".join(line.split()[:4]) for line in lines if line.startswith(b"RDATA"))


@pytest.fixture(params=["comes back", "is new"])
def heard(transactional_db, request):
    """North and south stood at 5, south had left, or is not known yet; since then south came and wrote 6, and north wrote 7."""
    give_out(7)
    writers = {"north": "active"} | ({"south": "retired"} if request.param == "comes back" else {})
    for writer, state in writers.items():
        StreamPosition.objects.create(stream="caches", instance_name=writer, position=5, state=state)
    found = Heard()
    with connection.cursor() as cursor:
        cursor.executemany(_FACT, [("south", 6), ("north", 7)])
    for writer, position in (("south", 6), ("north", 7)):
        StreamPosition.objects.update_or_create(
            {"position": position, "state": "active"}, stream="caches", instance_name=writer
        )
    yield found
    found.broadcaster._reader.close()


@pytest.fixture
def next_look_fails(monkeypatch):
    """The database goes away for one question."""
    real, failed = broadcast_reader.possible_positions, []

    def fail_once(cursor, streams, known, **options):
        if failed:
            return real(cursor, streams, known, **options)
        failed.append(streams)
        raise OperationalError("terminating connection due to administrator command")

    monkeypatch.setattr(broadcast_reader, "possible_positions", fail_once)
    return failed


@pytest.fixture
def next_read_fails(monkeypatch):
    """The database goes away behind the positions, before the rows."""
    real, failed = broadcast_reader.read_lines, []

    def fail_once(cursor, declaration, step, limit, **how):
        if failed:
            return real(cursor, declaration, step, limit, **how)
        failed.append(step)
        raise OperationalError("terminating connection due to administrator command")

    monkeypatch.setattr(broadcast_reader, "read_lines", fail_once)
    return failed


async def test_in_the_order_of_the_commits(heard):
    await heard.hear(*COMES_BACK)
    await heard.hear(*WRITES_THE_NEXT)
    assert await heard.facts() == FACTS


async def test_what_came_beside_a_round_is_not_overtaken_by_what_came_after_it(heard):
    await heard.hear_beside_a_round(*COMES_BACK)
    await heard.hear(*WRITES_THE_NEXT)
    assert await heard.facts() == FACTS


async def test_nothing_is_believed_between_a_lost_connection_and_the_look_at_everything(heard):
    await heard.hear()
    await heard.hear(*WRITES_THE_NEXT)
    assert await heard.facts() == FACTS


async def test_what_a_failed_round_of_the_listener_heard_is_not_forgotten(heard, next_look_fails):
    await heard.hear(*COMES_BACK)
    assert next_look_fails
    await heard.hear(*WRITES_THE_NEXT)
    assert await heard.facts() == FACTS


@pytest.mark.parametrize("only", [{"caches"}, None], ids=["one stream", "everything"])
async def test_what_a_failed_round_of_the_loop_heard_is_not_forgotten(heard, next_look_fails, only):
    await heard.hear_beside_a_round(*COMES_BACK)
    with pytest.raises(OperationalError):
        await heard.broadcaster._round(only)
    assert next_look_fails
    await heard.hear(*WRITES_THE_NEXT)
    assert await heard.facts() == FACTS


async def test_a_round_that_fails_at_its_rows_has_told_nobody_of_a_writer(heard, next_read_fails):
    await heard.hear(*COMES_BACK, *WRITES_THE_NEXT)
    assert next_read_fails
    assert await heard.facts() == FACTS
