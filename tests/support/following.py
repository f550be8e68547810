"""A follower in this process, and what it handed out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from streams.replication.client.follower import Follower, FollowerOptions
from streams.replication.protocol.ordering import FollowedRow
from tests.support.waiting import DEADLINE_SECONDS, wait_until

__all__ = ["Followed", "running"]


class Followed:
    """A follower on a loop in a thread, what it handed out and what it said is missing. ``handle`` in the place of that."""

    def __init__(self, options: FollowerOptions, catch_up: Any = None, handle: Any = None) -> None:
        self.rows: list[FollowedRow] = []
        self.gaps: list[Any] = []
        self.error: BaseException | None = None
        self.follower = Follower(options, handle or self.rows.extend, catch_up, missed=self.gaps.append)
        self._catch_up = catch_up
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._follow())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self._loop.close()

    async def _follow(self) -> None:
        try:
            await self.follower.run()
        finally:
            if self._catch_up is not None:
                await self._catch_up.close()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(self.follower.finish)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()

    def tokens(self) -> list[int]:
        return [row.token for row in self.rows]

    def of(self, stream: str) -> list[tuple[str, int, Any]]:
        return [(row.instance, row.token, row.row) for row in self.rows if row.stream == stream]

    def position(self, stream: str, writer: str = "master") -> int:
        return self.follower.positions().get(stream, {}).get(writer, -1)

    def wait_until_positioned(self) -> None:
        wait_until(lambda: self.follower.positions().get("caches") or self.error, what="the follower is positioned")

    def wait_for(self, token: int) -> None:
        wait_until(lambda: self.follower.linear("caches") >= token, what=f"linear position {token}")


@contextmanager
def running(followed: Followed) -> Iterator[Followed]:
    """Started, and stopped behind the block."""
    followed.start()
    try:
        yield followed
    finally:
        followed.stop()
