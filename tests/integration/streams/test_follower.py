"""A follower in this process, a server process, real facts, and a network that fails."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from streams.core.tokens import VectorToken
from streams.models import StreamPosition
from streams.replication.client.follower import FollowerOptions
from streams.replication.client.table_catch_up import TableCatchUp
from streams.replication.errors import CatchUpError, WrongRemote
from streams.replication.protocol.ordering import View
from streams.replication.transport.addresses import Address
from streams.runtime import logs
from tests.support.following import Followed, running
from tests.support.lying_server import lying_server
from tests.support.proxy import proxy_to
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import positioned, start_replication
from tests.support.writing import append, as_instance, fact, ids, session, stored, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def follower(port: int, uses_table: bool = True, handle: Callable | None = None, **options) -> Followed:
    given = FollowerOptions(Address("127.0.0.1", port), "test", streams=["caches"], **options)
    return Followed(given, TableCatchUp("default", "test follower") if uses_table else None, handle)


@contextmanager
def following(port: int, *, is_positioned: bool = True, **options) -> Iterator[Followed]:
    """A follower, when it was told a position unless its server tells none that it can take."""
    with running(follower(port, **options)) as followed:
        if is_positioned:
            followed.wait_until_positioned()
        yield followed


FAR = 1_000_000
LIES = [
    f"POSITION caches master 1 {FAR}\n",
    f"POSITION caches master 1 {2**63 - 1}\n",
    f'POSITION caches master 1 2\nRDATA caches master {FAR} ["x",["y"],1]\n',
    f"POSITION caches ghost 1 {FAR}\n",
]


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("said", LIES)
def test_a_server_that_names_a_token_above_the_sequence_loses_its_followers_no_fact(view, said):
    """The follower would stand there, and pass over the facts that get these IDs later."""
    first = append(3)
    wait_for_linear(first[-1])
    options = {"view": view, "start": {"caches": VectorToken(0)}, "is_positioned": False}
    with lying_server(said) as server, following(server.port, **options) as followed:
        wait_until(lambda: server.connects >= 2, what="the follower has left the server")
        assert set(followed.tokens()) <= set(ids())
        second = append(3)
        wait_for_linear(second[-1])
        server.said = f"POSITION caches master {second[-1]} {second[-1]}\n"
        wait_until(lambda: followed.tokens()[-1:] == second[-1:])
        assert followed.tokens() == ids()


def test_missed_facts_are_told_to_who_may_not_see_the_epoch():
    catch_up, role = TableCatchUp("default", "test"), f"sees_positions_{os.getpid()}"
    with session() as cursor:
        cursor.execute(f"CREATE ROLE {role}; GRANT SELECT ON streams_streamposition TO {role}")
        try:
            with catch_up._connection.cursor() as own:
                own.execute(f"SET ROLE {role}")
            assert set(asyncio.run(catch_up.writers(["caches"]))) == {"caches"}
            asyncio.run(catch_up.close())
        finally:
            cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("view", list(View))
def test_facts_are_handed_out_once_and_in_order(port, view):
    before = append(3)
    with following(port, view=view) as followed:
        wanted = [number for _ in range(5) for number in append(4)]
        followed.wait_for(wanted[-1])
        found = followed.tokens()
        assert len(found) >= len(wanted)
        # The server greets with the positions that it has heard of, perhaps not yet with those of the first facts.
        assert found == [*before, *wanted][-len(found) :]


def test_rows_of_a_fact_have_its_token(port):
    with following(port) as followed:
        with stream().reserve(1) as reservation:
            for name in ("one", "two"):
                row = fact(name)
                row.stream_id = reservation.ids[0]
                reservation.write(row)
        followed.wait_for(reservation.ids[0])
        assert [(row.token, row.row[0]) for row in followed.rows] == [
            (reservation.ids[0], "one"),
            (reservation.ids[0], "two"),
        ]


@pytest.mark.parametrize("view", list(View))
def test_nothing_is_missed_or_repeated_over_cuts(port, view):
    with proxy_to(port) as proxy, following(proxy.port, view=view) as followed:
        for number in range(60):
            append(5)
            if number % 12 == 5:
                proxy.cut()
        followed.wait_for(ids()[-1])
        assert followed.tokens() == ids()
        assert followed.follower.connects > 1


def test_what_was_written_while_the_server_was_away_comes_from_the_table(port):
    with proxy_to(port) as proxy, following(proxy.port) as followed:
        proxy.refuse()
        proxy.cut()
        append(50)
        proxy.refuse(False)
        followed.wait_for(ids()[-1])
        assert followed.tokens() == ids()


@pytest.mark.parametrize("view", list(View))
def test_a_follower_that_was_cut_as_slow_converges(start_manage, view):
    port = start_replication(start_manage, REPLSITE_SEND_BUFFER_LIMIT_BYTES="100000")
    with proxy_to(port) as proxy, following(proxy.port, view=view) as followed:
        proxy.stall()
        for _ in range(10):
            stream().append(*(fact("z" * 9_000) for _ in range(100)))
        proxy.stall(False)
        followed.wait_for(ids()[-1])
        assert followed.tokens() == ids()


def test_a_slow_handler_loses_nothing(port):
    got: list[int] = []

    async def slowly(rows) -> None:
        await asyncio.sleep(0.02)
        got.extend(row.token for row in rows)

    with following(port, handle=slowly) as followed:
        for _ in range(20):
            append(10)
        followed.wait_for(ids()[-1])
        assert got == ids()


def test_a_row_longer_than_a_line_is_fetched(port):
    with following(port) as followed:
        append()
        stream().append(fact("x" * 20_000))
        last = append()[-1]
        followed.wait_for(last)
        assert followed.tokens() == ids()


@pytest.mark.parametrize("view", list(View))
def test_two_writers_and_one_that_joins(port, run_manage, view):
    with following(port, view=view) as followed:
        first = threading.Thread(target=run_manage, args=("append", "caches", "--count", "300", "--batch", "3"))
        first.start()
        for _ in range(30):
            append(2)
        run_manage("append", "caches", "--count", "50", "--instance", "newcomer")
        first.join()
        followed.wait_for(ids()[-1])
        tokens = followed.tokens()
    assert sorted(tokens) == ids()
    if view is View.LINEAR:
        assert tokens == ids()
    for writer in ("master", "append", "newcomer"):
        own = [row.token for row in followed.rows if row.instance == writer]
        assert own == sorted(own)


def test_a_writer_that_came_and_went_while_we_were_away_is_not_missed(port, run_manage):
    wait_for_linear(append()[-1])
    with proxy_to(port) as proxy, following(proxy.port, view=View.LINEAR) as followed:
        before = len(ids())
        proxy.refuse()
        proxy.cut()
        append(5)
        run_manage("append", "caches", "--count", "20", "--instance", "visitor")
        append(5)
        wait_for_linear(ids()[-1])
        proxy.refuse(False)
        followed.wait_for(ids()[-1])
        assert followed.tokens() == ids()[before:]


def test_following_may_begin_at_an_earlier_token(port):
    wanted = append(10)
    start = {"caches": VectorToken(wanted[3])}
    with following(port, start=start) as followed:
        followed.wait_for(wanted[-1])
        assert followed.tokens() == wanted[4:]


@pytest.mark.parametrize("view", list(View))
def test_a_vector_start_passes_over_what_its_writers_had(port, view):
    mine = append(4)
    with as_instance("south"):
        theirs = append(4)
        wait_until(lambda: stored().get("south") and stored()["south"].position >= theirs[-1])
        start = {"caches": VectorToken(mine[1], {"south": theirs[2]})}
        with following(port, start=start, view=view) as followed:
            wait_until(lambda: theirs[3] in followed.tokens() and len(followed.tokens()) >= 3)
            assert sorted(followed.tokens()) == [*mine[2:], theirs[3]]


def test_without_catch_up_gaps_are_counted_and_passed(port):
    with proxy_to(port) as proxy, positioned(port) as beside, following(proxy.port, uses_table=False) as followed:
        append(2)
        followed.wait_for(ids()[-1])
        proxy.refuse()
        proxy.cut()
        beside.read_until(f"RDATA caches master {append(5)[-1]}")  # the server has sent them, but to this one alone
        proxy.refuse(False)
        wait_until(lambda: followed.follower.facts_missed_ranges == 1)
        last = append()[-1]
        followed.wait_for(last)
        assert followed.tokens() == [*ids()[:2], last]


def test_another_server_than_the_wanted_one_is_refused(port):
    with following(port, server_name="elsewhere.org") as followed:
        wait_until(lambda: followed.error)
    assert isinstance(followed.error, WrongRemote)
    assert "--server-name localhost" in str(followed.error)


@pytest.mark.parametrize("accepts", [False, True])
def test_a_server_that_cannot_be_used_is_named_again_and_again(accepts, monkeypatch, caplog):
    """After one warning it was silent, for hours; and from the first on, of a server that closes every connection."""
    monkeypatch.setattr(logs, "AGAIN_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if accepts:

            def close_each() -> None:
                with suppress(OSError):
                    while True:
                        server.accept()[0].close()

            threading.Thread(target=close_each, daemon=True).start()
        else:
            server.close()
        with running(follower(port)):
            wait_until(lambda: caplog.text.count("follower.still_not_connected") > 1)
        if accepts:
            server.shutdown(socket.SHUT_RDWR)
    assert caplog.text.count("follower.connection_failed") == 1
    assert "next_try_seconds" in caplog.text and f"127.0.0.1:{port}" in caplog.text


@pytest.mark.parametrize("kind", [ZeroDivisionError, ConnectionError, TimeoutError, CatchUpError])
def test_a_handler_that_fails_ends_the_follower_with_its_error(port, kind):
    """Errors that look like those of the connection, too: coming back would pass over the facts that were not handled."""

    def fail(rows) -> None:
        raise kind("of the handler")

    with following(port, handle=fail) as followed:
        append()
        wait_until(lambda: followed.error)
    assert isinstance(followed.error, kind)


def test_a_writer_whose_position_is_gone_no_longer_holds_back(port):
    with as_instance("short-lived"):
        append()
        wait_until(lambda: "short-lived" in stored())
        with proxy_to(port) as proxy, following(proxy.port) as followed:
            StreamPosition.objects.filter(instance_name="short-lived").delete()
            with as_instance("master"):
                last = append(3)[-1]
                proxy.cut()
                followed.wait_for(last)


def test_rows_that_the_handler_has_not_taken_yet_are_told_as_queued(port):
    busy, go_on = threading.Event(), threading.Event()

    async def handle(rows):
        busy.set()
        await asyncio.to_thread(go_on.wait, 60)

    with following(port, handle=handle) as followed:
        append(3)
        assert busy.wait(DEADLINE_SECONDS)
        assert followed.follower.queued() == {"caches": 3}
        go_on.set()
        wait_until(lambda: followed.follower.queued() == {})
