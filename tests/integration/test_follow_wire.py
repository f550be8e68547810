"""The same handlers, told of facts by a replication server: each fact has its effect once, whatever is cut."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from streams.core.tokens import VectorToken
from streams.epochs import begin_epoch
from streams.errors import EpochChanged, HandlerFailed, ResyncNeeded
from streams.follow import Begin, Chunk, Handler, OnFailure, View, parked_facts
from streams.follow.socket_loop import token_after
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import StoredCursor
from streams.replication.client.connection import TcpConnector
from streams.replication.client.table_catch_up import TableCatchUp
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.transport.addresses import Address
from tests.support.effects import effects, effects_table, running, take
from tests.support.proxy import proxy_to
from tests.support.waiting import wait_until
from tests.support.wire_client import start_replication
from tests.support.writing import append, ids, session, stream, wait_for_linear

#: Roles belong to the whole server.
SEES_POSITIONS = f"sees_positions_{os.getpid()}"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with effects_table():
        yield


@pytest.fixture
def port(start_manage) -> int:
    return start_replication(start_manage)


def server(port: int) -> TcpConnector:
    return TcpConnector(Address("127.0.0.1", port), "r", "localhost")


def handler(function=take, **options) -> Handler:
    return Handler("caches", "r", function, **({"begin": Begin.OLDEST, "retry_seconds": 0.01} | options))


@pytest.mark.parametrize("view", list(View))
def test_facts_before_and_after_the_start_have_their_effect_once(port, view):
    append(5)
    with running(handler(view=view, chunk_rows=2), server=server(port)) as runs:
        for _ in range(10):
            append(3)
        wait_until(lambda: len(effects()) >= 35 or runs.error)
        assert effects() == ids()
        assert runs.error is None
    assert StoredCursor.objects.get().base >= ids()[-1]


@pytest.mark.parametrize("view", list(View))
def test_nothing_is_missed_or_repeated_over_cuts_and_restarts(port, view):
    with proxy_to(port) as proxy:
        for _ in range(2):
            with running(handler(view=view), server=server(proxy.port)):
                for number in range(30):
                    append(2)
                    if number % 10 == 5:
                        proxy.cut()
        append(3)
        with running(handler(view=view), server=server(proxy.port)) as runs:
            wait_until(lambda: len(effects()) >= len(ids()) or runs.error)
    assert effects() == ids()


def test_a_fact_that_cannot_be_taken_is_parked(port):
    wanted = append(9)

    def poison(chunk: Chunk) -> None:
        take(chunk)
        if any(fact.token == wanted[4] for fact in chunk):
            raise ValueError("poison")

    with running(handler(poison, on_failure=OnFailure.PARK, attempts=2), server=server(port)) as runs:
        wait_until(lambda: len(effects()) >= 8 or runs.error)
    assert effects() == [number for number in wanted if number != wanted[4]]
    assert [parked.token for parked in parked_facts("r")] == [wanted[4]]


def test_a_handler_that_gives_up_stops_the_reader_in_front_of_the_fact(port):
    wanted = append(3)

    def fail(chunk: Chunk) -> None:
        raise ValueError

    with running(handler(fail, attempts=1), server=server(port)) as runs:
        wait_until(lambda: runs.error)
    assert isinstance(runs.error, HandlerFailed)
    assert StoredCursor.objects.get().base < wanted[0]


def test_a_reader_below_the_mark_is_told_to_resync(port):
    wanted = append(5)
    wait_for_linear(wanted[-1])
    StoredCursor.objects.create(reader="r", stream="caches", base=wanted[0])
    with session() as cursor:
        list(trim(cursor, TrimRequest(stream(), Keep(facts=1), ignored=("r",), settle_seconds=0)))
    with running(handler(), server=server(port)) as runs:
        wait_until(lambda: runs.error)
    assert isinstance(runs.error, ResyncNeeded)
    assert effects() == []


@pytest.mark.parametrize("atomic", [True, False])
def test_after_a_restore_a_reader_that_lives_on_begins_again_or_says_why_not(port, atomic):
    """Its follower would take facts under IDs that were given out again for those that it has handled."""
    append(2)
    with proxy_to(port) as proxy, running(handler(atomic=atomic), server=server(proxy.port)) as runs:
        wait_until(lambda: len(effects()) == 2 or runs.error)
        with session() as cursor:
            word = begin_epoch(cursor, "restored by the test")
        proxy.cut()
        append(1)
        if atomic:
            wait_until(lambda: len(effects()) == 3 or runs.error)
            assert (runs.error, StoredCursor.objects.get().epoch) == (None, word)
        else:
            wait_until(lambda: runs.error or len(effects()) == 3)
            assert isinstance(runs.error, EpochChanged)


def test_missed_facts_are_told_to_who_may_not_see_the_epoch():
    catch_up = TableCatchUp("default", "test")
    with session() as cursor:
        cursor.execute(f"CREATE ROLE {SEES_POSITIONS}; GRANT SELECT ON streams_streamposition TO {SEES_POSITIONS}")
        try:
            with catch_up._connection.cursor() as own:
                own.execute(f"SET ROLE {SEES_POSITIONS}")
            assert set(asyncio.run(catch_up.writers(["caches"]))) == {"caches"}
            asyncio.run(catch_up.close())
        finally:
            cursor.execute(f"DROP OWNED BY {SEES_POSITIONS}; DROP ROLE {SEES_POSITIONS}")


def rows(*pairs: tuple[str, int]) -> list[FollowedRow]:
    return [FollowedRow("s", writer, token, None) for writer, token in pairs]


def test_the_cursor_covers_what_was_handed_out_per_writer_and_no_more():
    after = token_after(View.WRITER, VectorToken(5, {"b": 9}), rows(("a", 7), ("b", 11), ("a", 8)))
    assert after == VectorToken(5, {"a": 8, "b": 11})


def test_in_linear_order_the_last_token_covers_all():
    assert token_after(View.LINEAR, VectorToken(5, {"b": 6}), rows(("a", 7), ("b", 8))) == VectorToken(8)
