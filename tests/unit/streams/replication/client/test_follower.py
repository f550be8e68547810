"""What a follower says of itself at the moment when it calls ``progressed``: neither behind nor ahead of what it handed out.

Whoever stores facts and cursor together, then, gets each fact once, however it dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streams.core.tokens import VectorToken
from streams.replication.client.catch_up import Writers
from streams.replication.client.follower import Follower, FollowerOptions
from streams.replication.client.links import Counters
from streams.replication.common.command_hooks import subscribe
from streams.replication.errors import CatchUpError
from streams.replication.protocol.commands import Command, Error, Position, RData, RemoteServerUp
from streams.replication.protocol.cursors import Reset
from streams.replication.protocol.ordering import FollowedRow, View
from tests.support.waiting import DEADLINE_SECONDS


class OneAnswer:
    """A server that tells one position, and a link to it."""

    counters = Counters()

    def __init__(self) -> None:
        self._left: list[Sequence[Command]] = [[Position("s", "w", 5, 5)]]

    def can_reset(self, stream: str) -> bool:
        return False

    async def connect(self) -> OneAnswer:
        return self

    async def receive(self) -> Sequence[Command]:
        return self._left.pop() if self._left else ()

    def send(self, command: Command) -> None: ...

    async def close(self, reason: object) -> None: ...


class Table:
    """Facts 1 to 5 of one writer, in batches of two."""

    def covers(self, stream: str) -> bool:
        return True

    def can_reset(self, stream: str) -> bool:
        return False

    async def writers(self, streams: object) -> dict[str, Writers]:
        return {"s": Writers(5, {"w": 5})}

    async def given_out(self, streams: object) -> dict[str, int]:
        return {}

    async def fetch(self, stream: str, writer: str | None, after: int, upto: int, limit: int):
        reached = min(after + 2, upto)
        return [FollowedRow("s", "w", number, []) for number in range(after + 1, reached + 1)], reached

    async def close(self) -> None: ...


@pytest.mark.parametrize("view", list(View))
def test_positions_cover_exactly_what_was_handed_out(view):
    handed: list[int] = []
    told: list[tuple[int, int]] = []

    def progressed() -> None:
        if handed:
            told.append((handed[-1], follower.positions()["s"]["w"]))
        if handed and handed[-1] == 5:
            follower.finish()

    options = FollowerOptions(None, "test", start={"s": VectorToken(0)}, view=view, connector=OneAnswer())
    follower = Follower(options, lambda rows: handed.extend(row.token for row in rows), Table(), progressed)
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    assert handed == [1, 2, 3, 4, 5]
    assert [row for row in told if row[0] != row[1]] == []
    assert follower.linear("s") == 5


@pytest.mark.parametrize("view", list(View))
def test_positions_are_never_ahead_of_what_is_in_the_handlers_hands(view):
    """Also for facts that came over the connection: a cursor stored meanwhile must not cover them."""
    link = OneAnswer()
    link._left = [[RData("s", "w", number, []) for number in (6, 7)], [Position("s", "w", 5, 5)]]
    seen: list[tuple[int, int]] = []

    def handle(rows: Sequence[FollowedRow]) -> None:
        seen.append((rows[0].token, max(follower.linear("s"), follower.positions().get("s", {}).get("w", 0))))
        if rows[-1].token == 7:
            follower.finish()

    options = FollowerOptions(None, "test", start={"s": VectorToken(5)}, view=view, connector=link)
    follower = Follower(options, handle, Table())
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    assert [token for token, _ in seen] == [6]
    assert all(position < token for token, position in seen)


class Memory(Table):
    """The same facts of a stream in memory."""

    def can_reset(self, stream: str) -> bool:
        return True


class MemoryServer(OneAnswer):
    def can_reset(self, stream: str) -> bool:
        return True


@pytest.mark.parametrize("view", list(View))
def test_a_stream_that_began_anew_is_not_said_to_be_where_its_new_life_was_not_handed_out_yet(view):
    """Whoever stored that position, or ended at it, would never get the facts before it."""
    link = MemoryServer()
    link._left = [[Position("s", "w", 3, 3)], [Position("s", "w", 5, 5)]]
    handed: list[int] = []
    ahead: list[tuple[int, int]] = []

    def progressed() -> None:
        at = follower.positions()["s"]["w"]
        if link._left == [] and at < 5 and at > max(handed, default=0):
            ahead.append((at, max(handed, default=0)))
        if handed and handed[-1] == 3:
            follower.finish()

    options = FollowerOptions(None, "test", start={"s": VectorToken(5)}, view=view, connector=link)
    follower = Follower(options, lambda rows: handed.extend(row.token for row in rows), Memory(), progressed)
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    assert ahead == []
    assert handed == [1, 2, 3]


def test_what_is_longer_than_any_name_reaches_no_handler(caplog):
    """A server may pass on what anybody told it; it is no reason to leave the server."""
    link, heard = OneAnswer(), []
    too_long, after_them = RemoteServerUp("a" * 16_000), RemoteServerUp("after.them")
    link._left = [[too_long] * 1_000 + [after_them], [Position("s", "w", 5, 5)]]

    def hear(command: RemoteServerUp) -> None:
        heard.append(command)
        follower.finish()

    stop = subscribe(RemoteServerUp, hear)
    options = FollowerOptions(None, "test", start={"s": VectorToken(5)}, connector=link)
    follower = Follower(options, lambda rows: None, Table())
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    stop()
    assert heard == [after_them]
    said = [record.getMessage() for record in caplog.records if "command_ignored" in record.getMessage()]
    assert len(said) == 10 and all(len(line) < 1_000 for line in said)


def test_errors_of_a_server_fill_no_log(caplog):
    link = OneAnswer()
    link._left = [[Error("no")] * 1_000 + [RemoteServerUp("after.them")], [Position("s", "w", 5, 5)]]
    stop = subscribe(RemoteServerUp, lambda _: follower.finish())
    options = FollowerOptions(None, "test", start={"s": VectorToken(5)}, connector=link)
    follower = Follower(options, lambda rows: None, Table())
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    stop()
    assert sum("server_error" in record.getMessage() for record in caplog.records) == 10


def test_whoever_keeps_count_is_told_that_a_stream_begins_anew_before_what_is_fetched_of_it():
    link = MemoryServer()
    link._left = [[Position("s", "w", 3, 3)], [Position("s", "w", 5, 5)]]
    told: list[object] = []

    def handle(rows: Sequence[FollowedRow]) -> None:
        told.extend(row.token for row in rows)
        if rows[-1].token == 3:
            follower.finish()

    options = FollowerOptions(None, "test", start={"s": VectorToken(5)}, connector=link)
    follower = Follower(options, handle, Memory(), missed=told.append)
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    assert told == [Reset("s", "w", 0), 1, 2, 3]


@pytest.mark.parametrize("view", list(View))
def test_what_came_before_a_stream_began_anew_is_handed_out(view):
    """Both in one read: the new life must not throw away what the old one left in the follower's hands."""
    link = MemoryServer()
    link._left = [
        [RData("s", "w", 6, []), Position("s", "w", 0, 0), RData("s", "w", 1, [])],
        [Position("s", "w", 5, 5)],
    ]
    handed: list[int] = []

    def handle(rows: Sequence[FollowedRow]) -> None:
        handed.extend(row.token for row in rows)
        if rows[-1].token == 1:
            follower.finish()

    options = FollowerOptions(None, "test", start={"s": VectorToken(5)}, view=view, connector=link)
    follower = Follower(options, handle, Memory())
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    assert handed == [6, 1]


class AwayOnce(Table):
    """A table whose database is away when it is asked first."""

    has_been_away = False

    async def fetch(self, stream: str, writer: str | None, after: int, upto: int, limit: int):
        if not self.has_been_away:
            self.has_been_away = True
            raise CatchUpError("away")
        return await super().fetch(stream, writer, after, upto, limit)


def test_what_could_not_be_fetched_is_not_forgotten_when_the_next_server_is_behind_us():
    """It says nothing new of the stream, so only what we remember of it brings the facts."""
    link = OneAnswer()
    link._left = [[Position("s", "w", 4, 4)], [Position("s", "w", 5, 5)]]
    handed: list[int] = []

    def handle(rows: Sequence[FollowedRow]) -> None:
        handed.extend(row.token for row in rows)
        if rows[-1].token == 5:
            follower.finish()

    options = FollowerOptions(None, "test", start={"s": VectorToken(0)}, view=View.LINEAR, connector=link)
    follower = Follower(options, handle, AwayOnce())
    asyncio.run(asyncio.wait_for(follower.run(), DEADLINE_SECONDS))
    assert handed == [1, 2, 3, 4, 5]
