"""A follower process: the public `Follower`, and a log that holds its cursor and the facts up to it in one write.

After ``kill -9`` it goes on from the last whole line: what it was handed and had not logged comes again, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.logs import LineLog, Seen, checksum, seen_in

__all__ = ["FollowerOrders", "main"]

STREAM = "caches"


@dataclass(frozen=True, slots=True)
class FollowerOrders:
    """Whom one follower process follows, how, and where its log is."""

    name: str
    port: int
    view: str
    log: str
    first: int
    """Position to start from when there is no log yet."""


@dataclass(slots=True)
class _Cursor:
    """Where the log ends."""

    linear: int
    positions: dict[str, int] = field(default_factory=dict)

    def move(self, seen: Seen) -> None:
        self.linear = seen.linear
        self.positions |= seen.positions


class _Logging:
    """Handler and progress of the follower."""

    def __init__(self, log: LineLog, cursor: _Cursor) -> None:
        self._log, self._cursor = log, cursor
        self._rows: list[tuple[str, int, int]] = []
        self._handed_at = 0.0

    def handle(self, rows: Sequence[Any]) -> None:
        """Rows are in our hands: this is the moment that counts."""
        if not self._rows:
            self._handed_at = time.monotonic()
        self._rows += [(row.instance, row.token, checksum(row.row[:2])) for row in rows]

    def progressed(self, follower: Any) -> None:
        """Facts and the cursor behind them, in one write."""
        linear = max(follower.linear(STREAM), self._cursor.linear)
        now_at = follower.positions().get(STREAM, {})
        moved = {w: p for w, p in now_at.items() if p != self._cursor.positions.get(w)}
        if not (self._rows or moved or linear > self._cursor.linear):
            return
        seen = Seen(self._handed_at if self._rows else time.monotonic(), self._rows, linear, moved)
        self._log.write(seen.line())
        self._cursor.move(seen)
        self._rows = []


def _cut_to_whole_lines(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def _cursor(path: Path, first: int) -> _Cursor:
    cursor = _Cursor(first)
    if path.exists():
        for seen in seen_in(path):
            cursor.move(seen)
    return cursor


async def _follow(orders: FollowerOrders) -> None:
    from streams.replication.addresses import Address
    from streams.replication.catch_up import TableCatchUp
    from streams.replication.follower import Follower, FollowerOptions
    from streams.replication.protocol import Limits
    from streams.replication.views import View
    from streams.tokens import VectorToken

    path = Path(orders.log)
    _cut_to_whole_lines(path)
    cursor = _cursor(path, orders.first)
    options = FollowerOptions(
        address=Address.parse(f"127.0.0.1:{orders.port}"),
        name=orders.name,
        server_name="localhost",
        streams=[STREAM],
        start={STREAM: VectorToken.of(cursor.linear, cursor.positions)},
        view=View(orders.view),
        limits=Limits(ping_interval_seconds=1.0, ping_timeout_seconds=4.0),
    )
    logging = _Logging(LineLog(path), cursor)
    catch_up = TableCatchUp("default", f"replsite torture {orders.name}")
    follower = Follower(options, logging.handle, catch_up, lambda: logging.progressed(follower))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, follower.finish)
    await follower.run()
    await catch_up.close()


def main(orders: dict[str, Any]) -> None:
    """The whole life of a follower process."""
    asyncio.run(_follow(FollowerOrders(**orders)))
