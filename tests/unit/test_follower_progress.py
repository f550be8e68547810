"""What a follower says of itself at the moment when it calls ``progressed``: neither behind nor ahead of what it handed out.

Whoever stores facts and cursor together, then, gets each fact once, however it dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streams.replication.catch_up import Writers
from streams.replication.commands import Command, Position, RData
from streams.replication.connections import Counters
from streams.replication.follower import Follower, FollowerOptions
from streams.replication.views import FollowedRow, View
from streams.tokens import VectorToken


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
    asyncio.run(asyncio.wait_for(follower.run(), 10))
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
    asyncio.run(asyncio.wait_for(follower.run(), 10))
    assert [token for token, _ in seen] == [6]
    assert all(position < token for token, position in seen)
