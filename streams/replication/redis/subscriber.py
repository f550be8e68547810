"""Follows a homeserver over Redis publish/subscribe, which every Synapse since 1.67 uses.

The lines are those of TCP, without the greeting. One message is one line, on the channel that is named like the
homeserver. We subscribe, publish REPLICATE, and publish nothing else. Every process of the homeserver answers for the
streams that it writes, in its own time. So the first commands of a connection are gathered for a moment. Then the first
POSITION of every writer is passed on before all other commands, stream by stream. The follower thus knows all writers
from the start.

Messages that cannot be parsed are counted, logged and skipped, because other processes may be of a later version.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from streams.replication.client.connection import Counters
from streams.replication.client.http_catch_up import MEMORY_STREAMS
from streams.replication.errors import CommandError
from streams.replication.protocol.commands import (
    Command,
    Position,
    RData,
    Replicate,
    format_line,
    parse_line,
    printable,
)
from streams.replication.protocol.connection import CloseReason
from streams.replication.redis.connection import RedisConnection, open_redis
from streams.replication.transport.addresses import RedisAddress
from streams.runtime.logs import get_logger

__all__ = ["RedisConnector", "RedisLink", "first_positions_first"]

log = get_logger(__name__)

# There is no line limit here: Redis has none, and ours is for what we send, which is one word.
PING_SECONDS = 10.0
SILENCE_LIMIT_SECONDS = 30.0
#: The first answers are gathered until no new writer has appeared for this long ...
QUIET_SECONDS = 0.3
#: ... but no longer than this, and not more than so many commands.
GATHER_SECONDS = 3.0
GATHER_LIMIT = 50_000
#: Most commands that wait here. At this number we stop reading, and Redis disconnects us when its own limit is reached.
WAITING_LIMIT = 20_000
#: Most messages that cannot be parsed and are logged. Further ones are only counted.
LOGGED_LIMIT = 10


@dataclass(frozen=True)
class RedisConnector:
    """A connector to a homeserver's channel on a Redis server."""

    address: RedisAddress
    channel: str
    name: str

    def __str__(self) -> str:
        return str(replace(self.address, channel=self.channel))

    def can_reset(self, stream: str) -> bool:
        return stream in MEMORY_STREAMS

    async def connect(self) -> RedisLink:
        link = RedisLink(await open_redis(self.address, f"{self.name}-hears"), self.channel, str(self))
        try:
            # Subscribed before the request is published: an answer that comes earlier would be missed.
            await link.subscribe()
            await self._ask_for_positions()
        except BaseException:
            await link.close(CloseReason.SERVER_GONE)
            raise
        return link

    async def _ask_for_positions(self) -> None:
        line = format_line(Replicate()).removesuffix(b"\n")
        says = await open_redis(self.address, f"{self.name}-says")
        try:
            await says.ask("PUBLISH", self.channel, line)
        finally:
            await says.close()


class RedisLink:
    """A subscription. A task reads messages, and `receive` returns the commands in them."""

    def __init__(self, connection: RedisConnection, channel: str, where: str) -> None:
        self.counters = Counters()
        self.ignored = 0
        self._connection = connection
        self._channel = channel
        self._where = where
        self._waiting: list[Command] = []
        self._has_some = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._heard_at = time.monotonic()
        self._is_settled = False
        self._error: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def subscribe(self) -> None:
        """Subscribes, and begins to read. From now on every message of the channel is received."""
        await self._connection.ask("SUBSCRIBE", self._channel)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._keep_alive())]

    async def receive(self) -> Sequence[Command]:
        """Waits for commands and returns them. If the link has ended, raises the error that ended it.

        The first call waits until the processes have answered REPLICATE, and returns their positions first.
        """
        if not self._is_settled:
            await self._settle()
            self._is_settled = True
            if self._waiting:
                return first_positions_first(self._take())
        while not self._waiting:
            self._has_some.clear()
            if self._error is not None:
                raise self._error
            await self._has_some.wait()
        return self._take()

    def send(self, command: Command) -> None:
        """Sends nothing, because the channel belongs to the homeserver's processes and a follower is none of them."""

    async def close(self, reason: CloseReason) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        log.info("follower.connection_ended", server=self._where, reason=str(reason), ignored_messages=self.ignored)

    # --- reading --------------------------------------------------------------------------------------------------

    def _take(self) -> list[Command]:
        commands, self._waiting = self._waiting, []
        self._heard_at = time.monotonic()
        self._has_room.set()
        return commands

    async def _settle(self) -> None:
        """Waits until the homeserver's processes have sent their positions, at most ``GATHER_SECONDS``."""
        ends_at = time.monotonic() + GATHER_SECONDS
        named, named_at, looked_at = set[tuple[str, str]](), 0.0, 0
        while self._error is None and time.monotonic() < ends_at and len(self._waiting) < GATHER_LIMIT:
            new = self._waiting[looked_at:]
            looked_at = len(self._waiting)
            found = {(one.stream, one.instance) for one in new if isinstance(one, Position)} - named
            if found:
                named |= found
                named_at = time.monotonic()
            elif named and time.monotonic() > named_at + QUIET_SECONDS:
                return
            self._has_some.clear()
            with contextlib.suppress(TimeoutError):  # the loop looks at the clock then
                await asyncio.wait_for(self._has_some.wait(), QUIET_SECONDS / 3)

    async def _read(self) -> None:
        limit = WAITING_LIMIT
        try:
            while True:
                self._note(await self._connection.receive())
                if len(self._waiting) >= limit and self._is_settled:
                    self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:  # noqa: BLE001 - raised by `receive`
            self._error = error
            self._has_some.set()

    def _note(self, answer: Any) -> None:
        self._heard_at = time.monotonic()
        if not isinstance(answer, list) or len(answer) < 3 or answer[0] != b"message":
            return  # the answer to PING, a confirmation
        data: bytes = answer[2]
        self.counters.bytes_in += len(data)
        self.counters.lines_in += 1
        command = self._understood(data)
        if command is not None:
            self._waiting.append(command)
            self._has_some.set()

    def _understood(self, data: bytes) -> Command | None:
        try:
            text = data.decode("utf-8")
            return parse_line(text) if text.strip() else None
        except (UnicodeDecodeError, CommandError) as error:
            self.ignored += 1
            if self.ignored <= LOGGED_LIMIT:
                said = printable(data[:80].decode("utf-8", "replace"))
                log.warning("follower.message_ignored", server=self._where, error=str(error), message=said)
            return None

    async def _keep_alive(self) -> None:
        """Sends PING, and ends the link if nothing is received for ``SILENCE_LIMIT_SECONDS``, not even the answer to PING."""
        try:
            while True:
                await asyncio.sleep(PING_SECONDS)
                # While reading is paused, silence says nothing about the connection.
                is_full = not self._has_room.is_set()
                if not is_full and time.monotonic() > self._heard_at + SILENCE_LIMIT_SECONDS:
                    raise ConnectionError(f"nothing was received from Redis for {SILENCE_LIMIT_SECONDS:g} s")
                await self._connection.send("PING")
        except Exception as error:  # noqa: BLE001 - raised by `receive`
            self._error = self._error or error
            self._has_some.set()


def first_positions_first(commands: Sequence[Command]) -> list[Command]:
    """Returns the commands with every writer's first POSITION ahead of the rest, stream by stream.

    A POSITION that comes after rows of its writer keeps its place, because those rows lie below it.
    """
    known: set[tuple[str, str]] = set()
    first: list[Position] = []
    rest: list[Command] = []
    for command in commands:
        if isinstance(command, Position | RData):
            writer = (command.stream, command.instance)
            if isinstance(command, Position) and writer not in known:
                first.append(command)
            else:
                rest.append(command)
            known.add(writer)
        else:
            rest.append(command)
    streams = {stream: place for place, stream in enumerate(dict.fromkeys(command.stream for command in first))}
    return [*sorted(first, key=lambda command: streams[command.stream]), *rest]
