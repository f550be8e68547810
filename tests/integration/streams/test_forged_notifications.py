"""What a role that may only read says by NOTIFY moves nothing: no position, no fact, no line to a follower."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction

from streams import registry
from streams.errors import WaitTimedOut
from streams.reading.trust import OneTimeWords
from streams.replication.server.relay import parts_of
from streams.waiting import wait
from streams.writing.control_loop import ControlLoop
from streams.writing.process import current_writer
from streams.writing.writer import WriterProcess
from tests.support.forging import forge, forger
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import positioned
from tests.support.writing import append, as_instance, give_out, ids, session, stored, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def liar() -> Iterator[Any]:
    with forger() as cursor:
        yield cursor


def sequence_value() -> int:
    with session() as cursor:
        return int(stream().sequence_value(cursor))


def test_the_role_may_only_read(liar):
    append()
    liar.execute("SELECT count(*) FROM streams_streamposition")
    assert liar.fetchone()[0] == 1
    with pytest.raises(Exception, match="permission denied"):
        liar.execute("UPDATE streams_streamposition SET position = 5")


@pytest.mark.parametrize("writer", ["master", "ghost", "north"])
def test_a_writer_stores_no_position_that_somebody_made_up(liar, writer):
    """It is idle, so it takes what others announce for its own: the next facts would lie below its position."""
    append()
    north = WriterProcess("default", "north", ControlLoop)
    try:
        north.enter(stream())
        forge(liar, f"caches {writer} 1000000")
        for _ in range(5):
            head = append()[0]
            wait_until(lambda: stored()["master"].position >= head)  # noqa: B023 - called in this round
        wait_for_linear(head)
        assert {name: at.position for name, at in stored().items()} == {"master": head, "north": head}
        assert "ghost" not in current_writer().trackers["caches"].raw_positions
    finally:
        north.close()


def test_no_fact_is_lost_between_positions_that_somebody_made_up(liar, port):
    """Each time just above the head: the fact that is open then would be passed over."""
    wait_for_linear(append()[0])
    with positioned(port) as client:
        for _ in range(100):
            with transaction.atomic():
                number = append()[0]
                forge(liar, f"caches master {number}")
                forge(liar, f"caches master {number + 1}")
            append()
        last = append()[0]
        client.read_until(f"RDATA caches master {last} ")
        tokens = [int(line.split()[3]) for line in client.of("RDATA caches master")]
    # The fact before the first may come, too: the server may read its position before it hears of it.
    assert tokens == [number for number in ids() if number >= tokens[0]] and len(tokens) in (201, 202)


def test_nobody_waits_in_vain_for_a_position_that_somebody_made_up(liar):
    number = append()[0]
    stream().wait_for(number)
    forge(liar, f"caches master {number + 10}")
    with pytest.raises(WaitTimedOut):
        stream().wait_for(number + 10, 0.5)
    assert wait.views.get().seen("caches").linear == number


def test_a_writer_speaks_for_itself_alone(port):
    """A session that holds the lock of one writer says nothing of another."""
    append()
    north = WriterProcess("default", "north", ControlLoop)
    try:
        north.enter(stream())
        with north.control_cursor() as cursor:
            forge(cursor, "caches master 1000000")
        head = append()[0]
        wait_for_linear(head)
        assert {at.position for at in stored().values()} == {head}
    finally:
        north.close()


@pytest.mark.parametrize("beyond", [0, 1, 1_000_000])
def test_what_came_from_the_number_of_our_session_before_it_was_ours(beyond):
    """Such notifications may still be on their way. We know best where we are: nothing above that is ours."""
    wait_for_linear(append()[0])
    lease = current_writer().lease
    north = WriterProcess("default", "north", ControlLoop)
    try:
        with transaction.atomic():
            held = append()[0]
            with current_writer().control_cursor() as cursor:
                forge(cursor, f"caches master {held + beyond}")
            north.enter(stream())
            wait_until(lambda: "north" in current_writer().trackers["caches"].raw_positions)
            assert current_writer().trackers["caches"].announceable < held
            assert stored()["master"].position < held
        wait_for_linear(held)
        assert current_writer().lease == lease
    finally:
        north.close()


def test_who_got_the_number_of_an_ended_session_is_not_believed(liar):
    """The numbers of server processes are used again: the table still names the one of a writer that was killed."""
    head = append()[0]
    with as_instance("north"):
        wait_for_linear(append()[0])
        head += 1
    liar.execute("SELECT pg_backend_pid()")
    number = liar.fetchone()[0]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE streams_instance SET lock_backend_pid = %s, state = 'active' WHERE name = 'north'", [number]
        )
        cursor.execute("UPDATE streams_streamposition SET state = 'active' WHERE instance_name = 'north'")
    forge(liar, "caches north 1000000")
    for _ in range(5):
        head = append()[0]
        wait_until(lambda: stored()["master"].position >= head)  # noqa: B023 - called in this round
    assert max(at.position for at in stored().values()) == head


def test_who_got_the_number_of_a_killed_writer_is_not_believed_for_a_moment(liar):
    """It has that number a moment after the writer was heard; so the test takes its role's right to write away instead."""
    with as_instance("north"):
        head = append()[0]
        wait_for_linear(head)
    liar.execute("SELECT pg_backend_pid(), current_user")
    number, role = liar.fetchone()
    append()
    stream().wait_for(head, DEADLINE_SECONDS)
    view = wait.views.get()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE streams_instance SET lock_backend_pid = %s, state = 'active' WHERE name = 'north'", [number]
        )
        cursor.execute("UPDATE streams_streamposition SET state = 'active' WHERE instance_name = 'north'")
        cursor.execute(f"GRANT UPDATE ON streams_streamposition TO {role}")
    words = OneTimeWords()
    told = head
    for told in (head + 1, head + 2):
        give_out(told)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE streams_streamposition SET position = %s WHERE instance_name = 'north'", [told])
        forge(liar, f"caches north {told} {words.take('caches')}")
        wait_until(lambda: view.seen("caches").heard.raw_positions.get("north") == told)  # noqa: B023 - called in this round
    spent = words.take("caches")
    forge(liar, f"caches north {told} {spent}")
    with connection.cursor() as cursor:
        cursor.execute(f"REVOKE UPDATE ON streams_streamposition FROM {role}")
    for lie in (f"caches north 1000000 {spent}", "caches north 1000000", "caches north 1000000 a b"):
        forge(liar, lie)
        number = append()[0]
        wait_until(lambda: view.seen("caches").heard.raw_positions["master"] >= number)  # noqa: B023 - called in this round
        assert view.seen("caches").heard.raw_positions["north"] == told


def test_a_writer_that_took_its_name_again_is_believed(port):
    """Its session is another one now; what it says from there counts."""
    append()
    with positioned(port) as client:
        for _ in range(3):
            writer = current_writer()
            lease = writer.lease
            writer.fenced("for the test")
            wait_until(lambda: writer.has_lock and writer.lease > lease)  # noqa: B023 - called in this round
            number = append()[0]
            client.read_until(f"RDATA caches master {number} ")


def test_a_stored_position_above_the_sequence_moves_nobody(port):
    """However it came there: IDs up to it are still to be given out."""
    append(3)
    north = WriterProcess("default", "north", ControlLoop)
    try:
        north.enter(stream())
        wait_for_linear(sequence_value())
        with positioned(port) as client:
            with session() as cursor:
                cursor.execute("UPDATE streams_streamposition SET position = 1000000 WHERE instance_name = 'north'")
                forge(cursor, "caches north")
            for _ in range(5):
                head = append()[0]
                client.read_until(f"RDATA caches master {head} ")
            assert stored()["master"].position <= sequence_value()
            assert not [line for line in client.lines if line.endswith(" 1000000")]
    finally:
        north.close()


def test_an_echo_of_stored_positions_leaves_out_what_is_above_the_sequence(port):
    """Also if the server took no notification for a moment, so that the table is what is sent."""
    append(3)
    north = WriterProcess("default", "north", ControlLoop)
    try:
        north.enter(stream())
        wait_for_linear(sequence_value())
        with positioned(port) as client, session() as cursor:
            cursor.execute("UPDATE streams_streamposition SET position = 1000000 WHERE instance_name = 'north'")
            loop = north._background
            with north.control_cursor() as own:
                loop._echo(own, {"caches"})
            head = append()[0]
            client.read_until(f"RDATA caches master {head} ")
            assert not [line for line in client.lines if line.endswith(" 1000000")]
    finally:
        north.close()


def test_a_flood_costs_few_looks(liar, monkeypatch):
    """Whoever says much is heard little: looks at the table are bounded, and so is what is remembered."""
    from streams.writing import control_loop

    append()
    stream().wait_for(ids()[-1])
    looked = []
    real = control_loop.possible_positions

    def counted(*given: Any) -> Any:
        looked.append(given)
        return real(*given)

    monkeypatch.setattr(control_loop, "possible_positions", counted)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        liar.execute(
            "SELECT pg_notify('replsite_streams', 'caches w' || n || ' ' || n) FROM generate_series(1, 500) AS n"
        )
        liar.execute("SELECT pg_notify('replsite_streams', 'stream' || n || ' w 1') FROM generate_series(1, 500) AS n")
    number = append()[0]
    wait_for_linear(number)
    assert stream().wait_for(number, DEADLINE_SECONDS)
    assert len(looked) <= 60 * (time.monotonic() - began)
    view = wait.views.get()
    # What was lost in the flood is read from the table, which has the other streams, too; made-up names are nowhere.
    assert set(view._trackers) <= set(registry.names())
    assert set(view.seen("caches").heard.raw_positions) == {"master"}


# --- what is relayed between servers ------------------------------------------------------------------------------

LIES = [
    'RDATA caches master 999999 ["lie", ["k"], 1]',
    "POSITION caches master 1 999999",
    "ERROR go away",
    "SERVER elsewhere",
    "REMOTE_SERVER_UP lie.example",
]


def relay(cursor: Any, line: str) -> None:
    for payload in parts_of("elsewhere", f"{line}\n".encode()):
        forge(cursor, payload, "replsite_relay")


def test_followers_hear_nothing_of_what_a_reading_role_relays(liar, port):
    with positioned(port) as client:
        for line in LIES:
            relay(liar, line)
        number = append()[0]
        client.read_until(f"RDATA caches master {number} ")
        client.say("REPLICATE")
        client.read_until("POSITION caches")
        assert not set(LIES) & set(client.lines)


def test_only_what_may_be_relayed_is_relayed_also_from_a_server(port):
    """A session of the site's own role: another version, or a mistake."""
    with positioned(port) as client, session() as cursor:
        for line in (*LIES[:4], "REMOTE_SERVER_UP truth.example"):
            relay(cursor, line)
        client.read_until("REMOTE_SERVER_UP truth.example")
        assert not set(LIES) & set(client.lines)


def test_who_got_the_number_of_a_killed_server_relays_nothing(liar, port):
    """It has that number a moment after the server spoke; so the test takes its role's right to write away instead."""
    liar.execute("SELECT current_user")
    role = liar.fetchone()[0]

    with positioned(port) as client, session() as cursor:
        cursor.execute(f"GRANT UPDATE ON streams_streamposition TO {role}")
        relay(liar, "REMOTE_SERVER_UP server.example")
        client.read_until("REMOTE_SERVER_UP server.example")
        cursor.execute(f"REVOKE UPDATE ON streams_streamposition FROM {role}")
        relay(liar, "REMOTE_SERVER_UP lie.example")
        relay(cursor, "REMOTE_SERVER_UP truth.example")
        client.read_until("REMOTE_SERVER_UP truth.example")
        assert "REMOTE_SERVER_UP lie.example" not in client.lines


def test_strange_parts_end_no_connection(liar, port):
    """A number of thousands of digits cannot be read, and parts that never end are not kept."""
    with positioned(port) as client, session() as cursor:
        for who in (liar, cursor):
            forge(who, f"a b 0 {'9' * 5000} eA==", "replsite_relay")
            forge(who, f"a b {'9' * 5000} 1 eA==", "replsite_relay")
            forge(who, "a b 0 0 eA==", "replsite_relay")
            who.execute(
                "SELECT pg_notify('replsite_relay', 'a m' || n || repeat('x', 5000) || ' 0 2 ')"
                " FROM generate_series(1, 500) AS n"
            )

        def is_heard() -> bool:  # what is relayed while much waits in the server's queue is dropped
            relay(cursor, "REMOTE_SERVER_UP truth.example")
            with suppress(AssertionError):
                client.read_until("REMOTE_SERVER_UP truth.example", 1)
                return True
            return False

        wait_until(is_heard)
