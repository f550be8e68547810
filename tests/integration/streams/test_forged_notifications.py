"""What a role that may only read says by NOTIFY moves nothing: no position, no fact, no line to a follower."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from streams import registry
from streams.errors import SequenceBehind, WaitTimedOut
from streams.maintenance.check import inspect_streams
from streams.reading import watcher
from streams.reading.position_notifications import READ_GAP_SECONDS
from streams.replication.server.relay import parts_of
from streams.waiting import wait
from streams.writing.given_out import forget_given_out
from tests.support.forging import forge, forger
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import positioned
from tests.support.writing import append, far_above, ids, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def liar() -> Iterator[Any]:
    with forger() as cursor:
        yield cursor


def sequence_value() -> int:
    with session() as cursor:
        return int(stream().sequence_value(cursor))


def test_the_role_may_only_read(liar):
    wait_for_linear(append()[0])
    liar.execute("SELECT count(*) FROM streams_streamposition")
    assert liar.fetchone()[0] == 1
    with pytest.raises(Exception, match="permission denied"):
        liar.execute("UPDATE streams_streamposition SET position = 5")


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


def test_a_stored_position_above_the_sequence_moves_nobody(port):
    """However it came there: IDs up to it are still to be given out."""
    wait_for_linear(append(3)[-1])
    with positioned(port) as client:
        with session() as cursor:
            cursor.execute("UPDATE streams_streamposition SET position = %s", [far := far_above()])
            forge(cursor, "caches")
        with pytest.raises(SequenceBehind):
            forget_given_out()
            append()
        assert not [line for line in client.lines if line.endswith(f" {far}")]
        with session() as cursor:
            assert not next(one for one in inspect_streams(cursor) if one.stream == "caches").well


def test_a_flood_costs_few_looks(liar, monkeypatch):
    """Whoever says much is heard little: looks at the table are bounded, and so is what is remembered."""
    stream().wait_for(append()[0])
    looked = []
    real = watcher.possible_positions

    def counted(*given: Any, **options: Any) -> Any:
        looked.append(given)
        return real(*given, **options)

    monkeypatch.setattr(watcher, "possible_positions", counted)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        liar.execute(
            "SELECT pg_notify('replsite_streams', 'caches w' || n || ' ' || n) FROM generate_series(1, 500) AS n"
        )
        liar.execute("SELECT pg_notify('replsite_streams', 'caches') FROM generate_series(1, 500) AS n")
        liar.execute("SELECT pg_notify('replsite_streams', '?' || n) FROM generate_series(1, 500) AS n")
    assert stream().wait_for(append()[0], DEADLINE_SECONDS)
    assert len(looked) <= 2 + (time.monotonic() - began) / READ_GAP_SECONDS
    view = wait.views.get()
    assert set(view._seen) <= set(registry.names())
    assert set(view.seen("caches").positions) == {"master"}


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
