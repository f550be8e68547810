"""Follows a homeserver over Redis publish/subscribe, which every Synapse since 1.67 uses.

The lines are the same as over TCP, without the greeting. Each message is one line. The channel has the name of the
homeserver. We subscribe, publish REPLICATE, and publish no other command. Every process of the homeserver answers for
the streams that it writes, some sooner and some later. So the first commands of a connection are collected for a
moment. Then the first POSITION of every writer is passed to the follower before all other commands, stream by stream.
So the follower knows all writers from the start.

Messages that cannot be parsed are counted, logged and skipped, because other processes may be of a later version. SERVER and
ERROR are skipped in the same way, because they concern a TCP connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from streams.replication.client.catch_up import MEMORY_STREAMS
from streams.replication.client.links import Counters
from streams.replication.errors import CommandError, MalformedCommand
from streams.replication.protocol.commands import (
    Command,
    Error,
    Position,
    RData,
    Replicate,
    Server,
    format_line,
    parse_line,
)
from streams.replication.protocol.connection import CloseReason
from streams.replication.redis.connection import RedisConnection, open_redis
from streams.replication.transport.addresses import RedisAddress
from streams.runtime.logs import get_logger
from streams.runtime.text import safe_text

log = get_logger(__name__)

# Received lines have no limit here, because Redis has none. Our own limit is for lines that we send, and we send one
# word.
PING_SECONDS = 10.0
SILENCE_LIMIT_SECONDS = 30.0
#: The first answers are gathered until no new writer has appeared for this long ...
QUIET_SECONDS = 0.3
#: ... but no longer than this, and not more than so many commands.
GATHER_SECONDS = 3.0
GATHER_LIMIT = 50_000
#: Most commands that wait here. At this number we stop reading, and Redis disconnects us when its own limit is reached.
WAITING_LIMIT = 20_000
#: Most bytes of messages that wait here. A single message may have half a gigabyte.
WAITING_LIMIT_BYTES = 64 * 1024 * 1024
#: Most messages that cannot be parsed and are logged. Further messages are only counted.
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
            await link.close(CloseReason.SERVER_LOST)
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
    """A subscription to a channel. A task reads messages, and `receive` returns the commands in the messages."""

    def __init__(self, connection: RedisConnection, channel: str, where: str) -> None:
        self.counters = Counters()
        self.ignored = 0
        self._connection = connection
        self._channel = channel
        self._where = where
        self._waiting: list[Command] = []
        self._waiting_bytes = 0
        self._has_some = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._received_at = time.monotonic()
        self._is_settled = False
        self._error: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def subscribe(self) -> None:
        """Subscribes to the channel, and starts to read. From now on every message on the channel is received."""
        await self._connection.ask("SUBSCRIBE", self._channel)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._keep_alive())]

    async def receive(self) -> Sequence[Command]:
        """Waits for commands and returns them. If the link has ended, raises the error that ended it.

        The first call waits until the homeserver's processes have answered REPLICATE, and returns their positions
        first.
        """
        if not self._is_settled:
            await self._settle()
            self._is_settled = True
            if self._waiting:
                return first_positions_first(self._pop())
        while not self._waiting:
            self._has_some.clear()
            if self._error is not None:
                raise self._error
            await self._has_some.wait()
        return self._pop()

    def send(self, command: Command) -> None:
        """Does nothing: a follower is not a process of the homeserver, and only these processes may publish on the channel."""

    async def close(self, reason: CloseReason) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        log.info("follower.connection_ended", server=self._where, reason=str(reason), ignored_messages=self.ignored)

    # --- reading --------------------------------------------------------------------------------------------------

    def _pop(self) -> list[Command]:
        commands, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._received_at = time.monotonic()
        self._has_room.set()
        return commands

    async def _settle(self) -> None:
        ends_at = time.monotonic() + GATHER_SECONDS
        named, named_at, seen = set[tuple[str, str]](), 0.0, 0
        while self._error is None and time.monotonic() < ends_at and not self._is_full(GATHER_LIMIT):
            new = self._waiting[seen:]
            seen = len(self._waiting)
            found = {(command.stream, command.instance) for command in new if isinstance(command, Position)} - named
            if found:
                named |= found
                named_at = time.monotonic()
            elif named and time.monotonic() > named_at + QUIET_SECONDS:
                return
            self._has_some.clear()
            with contextlib.suppress(TimeoutError):  # the loop looks at the clock then
                await asyncio.wait_for(self._has_some.wait(), QUIET_SECONDS / 3)

    def _is_full(self, limit: int) -> bool:
        return len(self._waiting) >= limit or self._waiting_bytes >= WAITING_LIMIT_BYTES

    async def _read(self) -> None:
        limit = WAITING_LIMIT
        try:
            while True:
                self._receive_message(await self._connection.receive())
                if self._is_full(limit if self._is_settled else GATHER_LIMIT):
                    self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:  # noqa: BLE001 - raised by `receive`
            self._error = error
            self._has_some.set()

    def _receive_message(self, answer: Any) -> None:
        self._received_at = time.monotonic()
        if not isinstance(answer, list) or len(answer) < 3 or answer[0] != b"message":
            return  # the answer to PING, a confirmation
        data: bytes = answer[2]
        self.counters.bytes_in += len(data)
        self.counters.lines_in += 1
        command = self._understood(data)
        if command is not None:
            self._waiting.append(command)
            self._waiting_bytes += len(data)
            self._has_some.set()

    def _understood(self, data: bytes) -> Command | None:
        try:
            text = data.decode("utf-8")
            if "\n" in text:  # no line has one; it could be in a name, which is printed
                raise MalformedCommand("a line feed within a message")
            command = parse_line(text) if text.strip() else None
            # No process of a homeserver sends SERVER or ERROR on a channel. A SERVER with another name would end the
            # follower, and every program on the channel could send it.
            if isinstance(command, Server | Error):
                raise MalformedCommand(f"{command.WORD} does not belong on a channel")
            return command
        except (UnicodeDecodeError, CommandError) as error:
            self.ignored += 1
            if self.ignored <= LOGGED_LIMIT:
                message = safe_text(data[:80].decode("utf-8", "replace"))
                log.warning("follower.message_ignored", server=self._where, error=str(error), message=message)
            return None

    async def _keep_alive(self) -> None:
        try:
            while True:
                await asyncio.sleep(PING_SECONDS)
                # While reading is paused, silence says nothing about the connection.
                is_full = not self._has_room.is_set()
                if not is_full and time.monotonic() > self._received_at + SILENCE_LIMIT_SECONDS:
                    raise ConnectionError(f"nothing was received from Redis for {SILENCE_LIMIT_SECONDS:g} s")
                await self._connection.send("PING")
        except Exception as error:  # noqa: BLE001 - raised by `receive`
            self._error = self._error or error
            self._has_some.set()


def first_positions_first(commands: Sequence[Command]) -> list[Command]:
    """Returns the commands in another order: first every writer's first POSITION, stream by stream, then all other commands.

    A POSITION that comes after rows of its writer is not moved, because these rows lie below the POSITION.
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
