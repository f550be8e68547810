"""What a link over Redis makes of messages; the rest of it is tested against a real Redis."""

from __future__ import annotations

import pytest

from streams.replication.protocol.commands import Position, RData, Replicate, parse_line
from streams.replication.redis.subscriber import RedisConnector, RedisLink, first_positions_first
from streams.replication.transport.addresses import RedisAddress


def parsed(*lines: str) -> list:
    return [parse_line(line) for line in lines]


def test_first_positions_come_first_stream_by_stream():
    heard = parsed(
        "REPLICATE ",
        "POSITION events master 5 5",
        "POSITION caches master 9 9",
        "RDATA caches master 10 []",
        "POSITION caches worker 9 9",
        "POSITION caches master 10 12",
    )
    wanted = [heard[1], heard[2], heard[4], heard[0], heard[3], heard[5]]
    assert first_positions_first(heard) == wanted


def test_a_position_behind_rows_of_its_writer_stays_where_it_is():
    heard = parsed("RDATA caches master 10 []", "POSITION caches master 10 10")
    assert first_positions_first(heard) == heard


def link() -> RedisLink:
    return RedisLink(None, "new.example", "redis://somewhere")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        b"BOGUS x", b"RDATA events other 5 nojson", b"\xff\xfe", b"POSITION events", b"RDATA events m batch", b"\x00",
        b"SERVER evil", b"ERROR lie", b"POSITION events a\nb 1 5", b"REMOTE_SERVER_UP a\nRDATA events master 5 []",
    ],
)  # fmt: skip
async def test_what_cannot_be_understood_is_counted_and_passed_over(message):
    one = link()
    one._receive_message([b"message", b"new.example", message])
    assert (one._waiting, one.ignored) == ([], 1)


@pytest.mark.parametrize("message", [b"", b"  "])
async def test_blank_messages_are_ignored(message):
    one = link()
    one._receive_message([b"message", b"new.example", message])
    assert (one._waiting, one.ignored) == ([], 0)


async def test_messages_are_the_lines_of_tcp():
    one = link()
    for message in (b"REPLICATE ", b"POSITION s w 1 2", b'RDATA s w 3 ["x"]', b"R" * 20_000):
        one._receive_message([b"message", b"new.example", message])
    assert one._waiting == [Replicate(), Position("s", "w", 1, 2), RData("s", "w", 3, ["x"])]
    assert one.counters.lines_in == 4


async def test_answers_to_ping_are_no_messages():
    one = link()
    one._receive_message([b"pong", b""])
    assert one.counters.lines_in == 0


async def test_a_row_may_be_longer_than_a_line_of_tcp():
    one = link()
    one._receive_message([b"message", b"c", b'RDATA s w 3 ["%s"]' % (b"x" * 100_000)])
    assert len(one._waiting) == 1


def test_where_it_is_for_people_without_the_password():
    address = RedisAddress.parse("redis://me:s3cret@[::1]:7000/2")
    assert str(RedisConnector(address, "new.example", "f")) == "redis://[::1]:7000/2?channel=new.example"


@pytest.mark.parametrize("stream", ["typing", "presence_federation", "federation"])
def test_only_streams_in_memory_begin_anew(stream):
    connector = RedisConnector(RedisAddress("h", 1), "c", "f")
    assert connector.can_reset(stream)
    assert not connector.can_reset("events")
