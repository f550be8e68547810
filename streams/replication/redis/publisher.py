"""``serve --redis URL``: our lines on a Redis channel, for whoever follows there; one more client of the broadcaster.

One message is one line on the channel that is called like our server. Of several servers that are told to publish on one
channel, one does and the others stand by: it holds an advisory lock of the database, and stops when it loses it, because rows
of one batch that come twice would break it for every follower. A link begins with REPLICATE and our positions, so a follower
that missed lines in between sees the gap; what waits to be sent is bounded like that of any client, and one that Redis does
not take in time ends the link. REMOTE_SERVER_UP is not passed on to Redis, where everybody hears everybody.
What workers say there reaches us like that of connected ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from streams.db import driver
from streams.replication.errors import CommandError, RedisRefused
from streams.replication.protocol.commands import Command, Position, RData, Replicate, format_line, parse_line
from streams.replication.protocol.connection import ServerConnection
from streams.replication.redis.connection import RedisConnection, open_redis
from streams.replication.redis.later_version import LaterLines, is_later
from streams.replication.server.broadcaster import Broadcaster
from streams.replication.server.client import ReplicationClient
from streams.replication.transport.addresses import RedisAddress
from streams.runtime.logs import get_logger

__all__ = ["ChannelClient", "RedisPublisher"]

log = get_logger(__name__)

RETRY_SECONDS = 1.0
LOCK_CHECK_SECONDS = 1.0
#: A session that the server does not hear of keeps its lock for longer than this (``database.SERVER_KEEPALIVES``).
LOCK_ANSWER_SECONDS = 5.0
#: Whoever had the lock before may only now find that it is lost, and stop.
HAND_OVER_SECONDS = 1.5
ANSWER_SECONDS = 10.0
#: Bytes of whole writes that are turned into messages at a time.
CHUNK_BYTES = 256 * 1024
_PUBLISHED = (b"RDATA ", b"POSITION ")
#: Our own lines come back; there is no need to parse them.
_ECHOES = (b"RDATA ", b"POSITION ", b"LOCK_RELEASED ")


class _Waiting:
    """What Redis has not confirmed yet; the peer's way out."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.is_closed = False
        self.changed = asyncio.Event()
        self._pieces: deque[bytes] = deque()

    def know(self) -> None:
        """A link to Redis has no place that others could want."""

    def write(self, data: bytes) -> None:
        self._pieces.append(data)
        self.buffered_bytes += len(data)
        self.changed.set()

    def drop_waiting(self) -> int:
        dropped = self.buffered_bytes
        self._pieces.clear()
        self.buffered_bytes = 0
        return dropped

    @property
    def waiting_lines(self) -> int:
        return sum(piece.count(b"\n") for piece in self._pieces)

    @property
    def kernel_bytes(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()

    abort = close

    def chunk(self) -> list[bytes]:
        """The next pieces; they count as buffered until they are `confirmed`."""
        pieces: list[bytes] = []
        size = 0
        while self._pieces and size < CHUNK_BYTES:
            pieces.append(self._pieces.popleft())
            size += len(pieces[-1])
        return pieces

    def confirmed(self, size: int) -> None:
        self.buffered_bytes = max(self.buffered_bytes - size, 0)


class ChannelClient(ReplicationClient):
    """The channel as a client of the broadcaster: neither greeting nor keep-alive."""

    def __init__(self, address: str, server_name: str) -> None:
        self.waiting = _Waiting()
        connection = ServerConnection(server_name)
        connection.connected(time.monotonic())
        connection.take_output()
        connection.take_words()
        super().__init__(connection, self.waiting, address)
        self.name = "redis"

    def flush(self) -> None:
        """Nothing that the protocol object says by itself goes to a channel."""
        self.connection.take_output()
        self.connection.take_words()
        if not self.is_open:
            self.waiting.close()

    def _set_timer(self) -> None:
        pass


class RedisPublisher:
    """Publishes until it is stopped, and comes back after every loss.

    ``take`` is given what others say on the channel.
    """

    def __init__(
        self,
        broadcaster: Broadcaster,
        address: RedisAddress,
        take: Callable[[ReplicationClient, list[Command]], None] = lambda peer, commands: None,
        gone: Callable[[ReplicationClient], None] = lambda peer: None,
    ) -> None:
        self.channel = address.channel or broadcaster.settings.server_name
        self.links = 0
        self.is_publishing = False
        self._broadcaster = broadcaster
        self._address = address
        self._take = take
        self._gone = gone
        self._lock = _Lock(broadcaster.settings.database, f"{address.host}:{address.port} {self.channel}")
        self._is_later = is_later(broadcaster.settings.redis_synapse_version)
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    async def start(self) -> None:
        """Begin; a Redis that is not there yet is waited for."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="redis publisher")

    async def stop(self) -> None:
        """End the link after what was written, and give the lock to another server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._lock.end()

    async def _run(self) -> None:
        while True:
            try:
                await self._lock.acquire()
                await self._publish()
            except (OSError, RedisRefused, driver.DatabaseError) as error:
                self._tell(str(error).strip() or type(error).__name__)
            await self._lock.release()  # perhaps another server fares better
            await asyncio.sleep(RETRY_SECONDS)

    def _tell(self, trouble: str) -> None:
        """One line per change."""
        if trouble and trouble != self._trouble:
            log.warning("redis.not_publishing", redis=str(self._address), channel=self.channel, error=trouble)
        elif not trouble:
            log.info("redis.publishing", redis=str(self._address), channel=self.channel)
        self._trouble = trouble

    # --- one link -------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        hears = await open_redis(self._address, "replsite-hears")
        says: RedisConnection | None = None
        peer: ChannelClient | None = None
        try:
            await hears.ask("SUBSCRIBE", self.channel)
            says = await open_redis(self._address, "replsite-says")
            peer = ChannelClient(str(self._address), self._broadcaster.settings.server_name)
            peer.waiting.write(format_line(Replicate()))
            self._broadcaster.join(peer)
            self._broadcaster.answer_replicate(peer)
            self.links += 1
            self.is_publishing = True
            self._tell("")
            await _first_to_end(self._say(peer, says), self._hear(peer, hears), self._lock.watch())
        finally:
            self.is_publishing = False
            if peer is not None:
                peer.lost()
                self._broadcaster.leave(peer)
                self._gone(peer)
            for connection in (hears, says):
                if connection is not None:
                    await connection.close()

    async def _say(self, peer: ChannelClient, says: RedisConnection) -> None:
        waiting, later = peer.waiting, LaterLines() if self._is_later else None
        while not waiting.is_closed:
            pieces = waiting.chunk()
            if not pieces:
                waiting.changed.clear()
                await waiting.changed.wait()
                continue
            lines = [line for piece in pieces for line in piece.split(b"\n") if _is_published(line)]
            sent = lines if later is None else list(later.turn(lines))
            await says.say_all([("PUBLISH", self.channel, line) for line in sent])
            for _ in sent:
                await says.hear(ANSWER_SECONDS)
            waiting.confirmed(sum(map(len, pieces)))

    async def _hear(self, peer: ChannelClient, hears: RedisConnection) -> None:
        while True:
            answer = await hears.hear()
            data = answer[2] if isinstance(answer, list) and answer[0] == b"message" else b""
            command = None if data.startswith(_ECHOES) else _understood(data)
            peer.connection.bytes_in += len(data)
            if isinstance(command, Replicate):
                self._broadcaster.answer_replicate(peer)
            elif command is not None and not isinstance(command, RData | Position):
                self._take(peer, [command])


def _is_published(line: bytes) -> bool:
    return line.startswith(_PUBLISHED) or line.rstrip() == b"REPLICATE"


def _understood(data: bytes) -> Command | None:
    """What others say is theirs: what we cannot read is passed over."""
    with contextlib.suppress(UnicodeDecodeError, CommandError):
        text = data.decode("utf-8")
        return parse_line(text) if text.strip() else None
    return None


async def _first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, which ends the others; raises its error."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Lock:
    """The right to publish on a channel, as a session lock; its connection is used in a thread."""

    def __init__(self, using: str, name: str) -> None:
        self._key = driver.publisher_key(name)
        self._connection = driver.KeptConnection(using, "replsite redis publisher")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-lock")

    async def acquire(self) -> None:
        """Wait until it is ours, and nobody else can believe that it is his; raises ``DatabaseError``."""
        while not await self._in_thread(self._try):  # noqa: ASYNC110 - another server holds it
            await asyncio.sleep(LOCK_CHECK_SECONDS)
        await asyncio.sleep(HAND_OVER_SECONDS)

    async def watch(self) -> None:
        """Ends with an error when the lock is lost."""
        while True:
            await asyncio.sleep(LOCK_CHECK_SECONDS)
            if not await asyncio.wait_for(self._in_thread(self._holds), LOCK_ANSWER_SECONDS):
                raise ConnectionError("the lock on the channel is lost: another server may publish now")

    async def release(self) -> None:
        """Let another server have it."""
        await self._in_thread(self._connection.close)

    async def end(self) -> None:
        await self.release()
        self._thread.shutdown(wait=True)

    def _try(self) -> bool:
        if self._holds():
            return True
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [self._key])
            return bool(cursor.fetchone()[0])

    def _holds(self) -> bool:
        """Asked of this very session: one that was opened anew holds nothing."""
        with self._connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted "
                "AND ((classid::bigint << 32) | objid::bigint) = %s)",
                [self._key],
            )
            return bool(cursor.fetchone()[0])

    async def _in_thread(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
