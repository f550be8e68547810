"""The wire under random input: pieces, round trips, arbitrary bytes, arbitrary histories."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.replication.errors import CommandError
from streams.replication.protocol import commands as wire
from streams.replication.protocol.announcer import Read, encode_rows
from streams.replication.protocol.connection import ClientConnection, Limits, ServerConnection, State
from streams.replication.protocol.cursors import Cursors, Fact, MissingRange
from tests.support.effort import examples
from tests.unit.streams.replication.protocol.test_announcer import Row

TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40)
WORD = st.text(st.characters(exclude_characters="\n \0", exclude_categories=["Cs"]), max_size=20)
NUMBER = st.integers(-(2**70), 2**70)
TOKEN = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
MAYBE = st.none() | st.text(max_size=10)
COMMAND = st.one_of(
    st.builds(wire.Server, TEXT),
    st.builds(wire.RData, WORD, WORD, st.none() | TOKEN, JSON),
    st.builds(wire.Position, WORD, WORD, TOKEN, TOKEN),
    st.builds(wire.Error, TEXT),
    st.builds(wire.Ping, TEXT),
    st.builds(wire.RemoteServerUp, TEXT),
    st.builds(wire.Name, TEXT),
    st.builds(wire.Replicate),
    st.builds(wire.UserSync, WORD, WORD, st.booleans(), NUMBER, st.none() | WORD),
    st.builds(wire.ClearUserSync, TEXT),
    st.builds(wire.FederationAck, WORD, TOKEN),
    st.builds(wire.UserIP, WORD, MAYBE, MAYBE, MAYBE, MAYBE, NUMBER),
    st.builds(wire.LockReleased, TEXT, TEXT, TEXT),
    st.builds(wire.NewActiveTask, TEXT),
    st.builds(wire.CancelTask, TEXT),
)
#: Bytes that are likely to come near a rule.
FRAGMENT = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"\n", b" ", b"PING", b"NAME x\n", b"REPLICATE\n", b"RDATA s w 5 []\n", b"\r\n", b"\xff", b"%s", b"\x00"]
    ),
    COMMAND.map(wire.format_line),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def hear(connection, parts):
    """The commands, what was answered and how it ended."""
    connection.connected(0.0)
    heard = [command for part in parts for command in connection.receive(part, 1.0)]
    return heard, connection.pop_output(), connection.state, connection.close_reason


@given(COMMAND)
def test_a_command_survives_its_line(command):
    assert wire.parse_line(wire.format_line(command)[:-1].decode()) == command


@given(st.lists(FRAGMENT, max_size=12).map(b"".join), st.lists(st.integers(0, 500), max_size=8))
@pytest.mark.parametrize("side", [ServerConnection, ClientConnection])
def test_any_cut_of_the_bytes_means_the_same(side, data, cuts):
    limits = Limits(line_bytes=60)
    whole = hear(side("x", limits=limits), [data])
    assert hear(side("x", limits=limits), pieces(data, cuts)) == whole


@given(st.lists(st.binary(max_size=200), max_size=10))
@pytest.mark.parametrize("side", [ServerConnection, ClientConnection])
def test_no_bytes_make_it_raise(side, parts):
    connection = side("x")
    _, output, state, reason = hear(connection, parts)
    assert (state is State.OPEN) == (reason is None)
    assert output.endswith(b"\n")
    assert output.isascii()


@given(st.text(max_size=200))
def test_parsing_raises_nothing_but_named_errors(line):
    try:
        command = wire.parse_line(line)
    except CommandError:
        return
    assert isinstance(command, wire.Command)


ROWS = st.lists(st.tuples(st.integers(1, 4), st.lists(JSON, max_size=3)), max_size=12)


@given(ROWS, st.integers(0, 3), st.integers(40, 400))
@settings(max_examples=examples(80))
def test_what_the_broadcaster_writes_is_what_the_follower_gets(steps, beyond, limit):
    """Whole facts in order; one that no line can hold becomes a gap that ends at its token."""
    token, rows = 10, []
    for step, row in steps:
        token += step if step > 1 else (0 if rows else 1)  # a step of 1 is one more row of the same fact
        rows.append(Row(token, row))
    reached = token + beyond
    lines = encode_rows(Read("s", "w", 10, reached), rows, reached, limit)
    cursors = Cursors()
    cursors.start("s", 10, {"w": 10})
    cursors.begin_connection()
    cursors.apply(wire.Position("s", "w", 10, 10))
    got: dict[int, list] = {}
    for line in lines.data.splitlines():
        event = cursors.apply(wire.parse_line(line.decode()))
        if isinstance(event, Fact):
            got[event.token] = list(event.rows)
        elif isinstance(event, MissingRange):
            got |= fetched(rows, event)
            cursors.reached("s", "w", event.upto)
    assert msgspec.json.encode(got) == msgspec.json.encode(fetched(rows, MissingRange("s", "w", 10, reached)))
    assert list(got) == sorted(got)
    assert cursors.positions()["s"]["w"] == reached


def fetched(rows: list[Row], gap: MissingRange) -> dict[int, list]:
    """What the table has in a gap."""
    found: dict[int, list] = {}
    for row in rows:
        if gap.after < row.token <= gap.upto:
            found.setdefault(row.token, []).append(row.row)
    return found
