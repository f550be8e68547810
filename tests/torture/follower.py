"""A follower process: the public `Follower`, and a log that holds its cursor and the facts up to it in one write.

After ``kill -9`` it goes on from the last whole line: what it was handed and had not logged comes again, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.logs import LineLog, Seen, checksum, seen_in
from tests.torture.streams import STREAMS

__all__ = ["FollowerOrders", "main"]


@dataclass(frozen=True, slots=True)
class FollowerOrders:
    """Whom one follower process follows, how, and where its log is."""

    name: str
    port: int
    view: str
    log: str
    first: Mapping[str, int]
    """Position of each stream to start from when there is no log yet."""


@dataclass(slots=True)
class _Cursor:
    """Where the log of one stream ends."""

    linear: int
    positions: dict[str, int] = field(default_factory=dict)

    def move(self, seen: Seen) -> None:
        self.linear = seen.linear
        self.positions |= seen.positions


class _Logging:
    """Handler and progress of the follower."""

    def __init__(self, log: LineLog, cursors: dict[str, _Cursor]) -> None:
        self._log, self._cursors = log, cursors
        self._rows: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        self._handed_at = 0.0

    def handle(self, rows: Sequence[Any]) -> None:
        """Rows are in our hands: this is the moment that counts."""
        if not self._rows:
            self._handed_at = time.monotonic()
        for row in rows:
            told = row.row[: len(STREAMS[row.stream].columns)]
            self._rows[row.stream].append((row.instance, row.token, checksum(told)))

    def progressed(self, follower: Any) -> None:
        """Facts and the cursor behind them, in one write."""
        told_at = self._handed_at if self._rows else time.monotonic()
        positions = follower.positions()
        steps = []
        for stream, cursor in self._cursors.items():
            linear = max(follower.linear(stream), cursor.linear)
            moved = {w: p for w, p in positions.get(stream, {}).items() if p != cursor.positions.get(w)}
            rows = self._rows.pop(stream, [])
            if rows or moved or linear > cursor.linear:
                steps.append(Seen(stream, told_at, rows, linear, moved))
        if steps:
            self._log.write(Seen.line(steps))
        for seen in steps:
            self._cursors[seen.stream].move(seen)


def _cut_to_whole_lines(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def _kept_cursors(path: Path, first: Mapping[str, int]) -> dict[str, _Cursor]:
    cursors = {stream: _Cursor(position) for stream, position in first.items()}
    if path.exists():
        for seen in seen_in(path):
            cursors[seen.stream].move(seen)
    return cursors


async def _follow(orders: FollowerOrders) -> None:
    from streams.core.tokens import VectorToken
    from streams.replication.client.follower import Follower, FollowerOptions
    from streams.replication.client.table_catch_up import TableCatchUp
    from streams.replication.protocol.connection import Limits
    from streams.replication.protocol.ordering import View
    from streams.replication.transport.addresses import Address

    path = Path(orders.log)
    _cut_to_whole_lines(path)
    cursors = _kept_cursors(path, orders.first)
    options = FollowerOptions(
        address=Address.parse(f"127.0.0.1:{orders.port}"),
        name=orders.name,
        server_name="localhost",
        streams=list(STREAMS),
        start={stream: VectorToken.of(cursor.linear, cursor.positions) for stream, cursor in cursors.items()},
        view=View(orders.view),
        limits=Limits(ping_interval_seconds=1.0, ping_timeout_seconds=4.0),
    )
    logging = _Logging(LineLog(path), cursors)
    catch_up = TableCatchUp("default", f"replsite torture {orders.name}")
    follower = Follower(options, logging.handle, catch_up, lambda: logging.progressed(follower))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, follower.finish)
    await follower.run()
    await catch_up.close()


def main(orders: dict[str, Any]) -> None:
    """The whole life of a follower process."""
    asyncio.run(_follow(FollowerOrders(**orders)))
