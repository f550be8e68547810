"""Publishes our lines on a Redis channel (``serve --redis URL``), as one more client of the broadcaster.

Each message is one line. The channel has the name of our homeserver. If several servers are configured for one channel,
one server publishes and the others wait. The publishing server holds an advisory lock of the database, and stops when
it loses the lock. Otherwise two servers could publish the rows of the same fact at the same time, and every follower
would mix up these rows.

A *link* is one connection to the channel. Every link begins with REPLICATE and our positions. So a follower that missed
lines before sees the gap. The bytes that wait to be sent have the same limit as those of any client. If Redis does not
accept these bytes in time, the link ends. REMOTE_SERVER_UP is not relayed to Redis, because all processes on a channel
receive every message. Commands that workers publish on the channel are handled like those of connected workers.
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
from streams.reading.trust import stranger_with_lock
from streams.replication.errors import ChannelLocked, CommandError, RedisRefused
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
#: Longest wait for a check of the lock. PostgreSQL keeps the lock of a lost session longer
#: (``driver.SESSION_SETTINGS``).
LOCK_ANSWER_SECONDS = 5.0
#: Wait after getting the lock, longer than ``LOCK_CHECK_SECONDS``.
HAND_OVER_SECONDS = 1.5
ANSWER_SECONDS = 10.0
#: About the most bytes that are turned into messages at a time. Each piece is taken as a whole.
CHUNK_BYTES = 256 * 1024
#: The longest time to handle messages of the channel before other connections are served.
TURN_SECONDS = 0.002
#: A message that is longer is not parsed. A line has at most 16 KiB, and to parse a message of 8 MB took eight seconds.
MESSAGE_LIMIT_BYTES = 64 * 1024
_PUBLISHED = (b"RDATA ", b"POSITION ")
#: The channel returns our own lines. Lines that begin with these words need not be parsed.
_ECHOES = (b"RDATA ", b"POSITION ", b"LOCK_RELEASED ")


class _Waiting:
    """The transport of a link to Redis. It holds the bytes that Redis has not confirmed yet."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.is_closed = False
        self.changed = asyncio.Event()
        self._pieces: deque[bytes] = deque()

    def know(self) -> None:
        """Does nothing, because a link to Redis is never closed to make room for other clients."""

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
        """Removes and returns the next pieces of bytes to send, together about ``CHUNK_BYTES`` at most.

        The bytes of these pieces count as buffered until `confirmed` is called.
        """
        pieces: list[bytes] = []
        size = 0
        while self._pieces and size < CHUNK_BYTES:
            pieces.append(self._pieces.popleft())
            size += len(pieces[-1])
        return pieces

    def confirmed(self, size: int) -> None:
        self.buffered_bytes = max(self.buffered_bytes - size, 0)


class ChannelClient(ReplicationClient):
    """The client of the broadcaster that stands for the channel. It has neither greeting nor keep-alive."""

    def __init__(self, address: str, server_name: str) -> None:
        self.waiting = _Waiting()
        connection = ServerConnection(server_name)
        connection.connected(time.monotonic())
        connection.take_output()
        connection.take_words()
        super().__init__(connection, self.waiting, address)
        self.name = "redis"

    def flush(self) -> None:
        """Discards the output of the protocol object, such as PING, because it does not belong on a channel.

        Ends the link if the client is closed.
        """
        self.connection.take_output()
        self.connection.take_words()
        if not self.is_open:
            self.waiting.close()

    def _set_timer(self) -> None:
        pass


class RedisPublisher:
    """The publisher of one channel. It runs until it is stopped, and starts a new link after every loss.

    ``take`` is called with the client of the link and the commands that other processes publish on the channel.
    ``gone`` is called with this client when the link ends.
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
        """Starts the publisher. Does not wait for Redis: while Redis is unreachable, the publisher tries again."""
        self._broadcaster.redis_trouble = ""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="redis publisher")

    async def stop(self) -> None:
        """Ends the link, and releases the lock, so that another server can publish."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._lock.end()

    async def _run(self) -> None:
        while True:
            try:
                await self._lock.acquire(self._another_publishes)
                await self._publish()
            except (OSError, RedisRefused, ChannelLocked, driver.DatabaseError) as error:
                self._log_trouble(str(error).strip() or type(error).__name__)
            except Exception as error:
                # An error in our code for one message. Without this handler the task would end, and no line would be published
                # until a restart. The health page would not show it, because it shows only errors that are set here.
                log.exception("redis.failed", redis=str(self._address), channel=self.channel)
                self._log_trouble(f"{type(error).__name__}: {error}")
            await self._lock.release()  # another server may be able to publish
            await asyncio.sleep(RETRY_SECONDS)

    def _another_publishes(self) -> None:
        """Clears the error on the health page, because another server of ours holds the lock and publishes."""
        self._trouble = self._broadcaster.redis_trouble = ""

    def _log_trouble(self, trouble: str) -> None:
        """Sets ``trouble`` as the error that the health page shows. An empty text means that publishing begins.

        Logs one line when publishing begins, and one line when the error changes.
        """
        if trouble and trouble != self._trouble:
            log.warning("redis.not_publishing", redis=str(self._address), channel=self.channel, error=trouble)
        elif not trouble:
            log.info("redis.publishing", redis=str(self._address), channel=self.channel)
        self._trouble = self._broadcaster.redis_trouble = trouble

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
            self._log_trouble("")
            await _first_to_end(self._send_lines(peer, says), self._receive_commands(peer, hears), self._lock.watch())
        finally:
            self.is_publishing = False
            if peer is not None:
                peer.lost()
                self._broadcaster.leave(peer)
                self._gone(peer)
            for connection in (hears, says):
                if connection is not None:
                    await connection.close()

    async def _send_lines(self, peer: ChannelClient, says: RedisConnection) -> None:
        waiting, later = peer.waiting, LaterLines() if self._is_later else None
        while not waiting.is_closed:
            pieces = waiting.chunk()
            if not pieces:
                waiting.changed.clear()
                await waiting.changed.wait()
                continue
            lines = [line for piece in pieces for line in piece.split(b"\n") if _is_published(line)]
            sent = lines if later is None else list(later.turn(lines))
            await says.send_all([("PUBLISH", self.channel, line) for line in sent])
            # Redis answers each PUBLISH. Until then the bytes count as buffered, so that a slow Redis is noticed.
            for _ in sent:
                await says.receive(ANSWER_SECONDS)
            waiting.confirmed(sum(map(len, pieces)))

    async def _receive_commands(self, peer: ChannelClient, hears: RedisConnection) -> None:
        turn_ends = time.monotonic() + TURN_SECONDS
        while True:
            # `receive` does not wait while messages are buffered. 1,000 messages would stall all other connections for
            # 0.1 s.
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN_SECONDS
            answer = await hears.receive()
            data = answer[2] if isinstance(answer, list) and answer[0] == b"message" else b""
            is_read = len(data) <= MESSAGE_LIMIT_BYTES and not data.startswith(_ECHOES)
            command = _understood(data) if is_read else None
            peer.connection.bytes_in += len(data)
            if isinstance(command, Replicate):
                self._broadcaster.answer_replicate(peer)
            elif command is not None and not isinstance(command, RData | Position):
                self._take(peer, [command])


def _is_published(line: bytes) -> bool:
    return line.startswith(_PUBLISHED) or line.rstrip() == b"REPLICATE"


def _understood(data: bytes) -> Command | None:
    """Returns the command in a message. Returns None if the message cannot be parsed, because it may be for other processes."""
    with contextlib.suppress(UnicodeDecodeError, CommandError):
        text = data.decode("utf-8")
        return parse_line(text) if text.strip() else None
    return None


async def _first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Runs the coroutines until the first of them ends, then cancels the others. If the first raised an error, raises it."""
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
    """The right to publish on a channel: a session advisory lock.

    All database queries of the lock run in one thread, which no other code uses.
    """

    def __init__(self, using: str, name: str) -> None:
        self._key = driver.publisher_key(name)
        self._connection = driver.KeptConnection(using, "replsite redis publisher")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-lock")

    async def acquire(self, another_has_it: Callable[[], None] = lambda: None) -> None:
        """Waits until this process holds the lock. Then waits until an earlier holder must have noticed that it lost the lock.

        While another server holds the lock, calls ``another_has_it`` after each attempt. Raises ``ChannelLocked`` if a
        session whose role may not write holds the lock. Raises ``DatabaseError``.
        """
        while not await self._in_thread(self._try):
            another_has_it()
            await asyncio.sleep(LOCK_CHECK_SECONDS)
        # A loses its session, and B gets the lock. A notices at its next check, up to LOCK_CHECK_SECONDS later, and publishes
        # until then. Without this wait both would publish.
        await asyncio.sleep(HAND_OVER_SECONDS)

    async def watch(self) -> None:
        """Checks at intervals that this process holds the lock. Raises ``ConnectionError`` when the lock is lost.

        Raises ``TimeoutError`` if the database does not answer within ``LOCK_ANSWER_SECONDS``.
        """
        while True:
            await asyncio.sleep(LOCK_CHECK_SECONDS)
            if not await asyncio.wait_for(self._in_thread(self._holds), LOCK_ANSWER_SECONDS):
                raise ConnectionError("the lock on the channel is lost: another server may publish now")

    async def release(self) -> None:
        """Releases the lock by closing the database session that holds it."""
        await self._in_thread(self._connection.close)

    async def end(self) -> None:
        await self.release()
        self._thread.shutdown(wait=True)

    def _try(self) -> bool:
        if self._holds():
            return True
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [self._key])
            if cursor.fetchone()[0]:
                return True
            # Every role that may connect can hold the lock. Without this check, such a role could stop the publishing,
            # and no error would show it.
            if stranger := stranger_with_lock(cursor, self._key):
                raise ChannelLocked(
                    f"{stranger} holds the lock of those that publish here, and that role may not write. End it "
                    f"(pg_terminate_backend), or give the site of another schema a channel of its own"
                )
            return False

    def _holds(self) -> bool:
        """Returns true if the present database session holds the lock.

        After a reconnection there is a new session, which does not hold the lock yet.
        """
        with self._connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted "
                "AND ((classid::bigint << 32) | objid::bigint) = %s)",
                [self._key],
            )
            return bool(cursor.fetchone()[0])

    async def _in_thread(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
