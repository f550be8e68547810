"""Sends facts and positions to all clients of a server process. Each fact is read once and encoded once.

A *round* reads new positions and facts, and sends them. Every notification starts a round, and a timer starts a round
at least once a second. Positions and facts are read in the thread that received the notification, or in a database
thread. The lines of the round are then written to the clients on the event loop, and from then on count as sent. While
there are no clients, the broadcaster reads only positions, and no rows.

If the database is unreachable for a while, clients stay connected and miss no facts. If the database is then in another
epoch (``streams.epochs``), clients are disconnected and have to connect again. Assumes a single event loop, on which
`start` and `stop` are called.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from streams import registry
from streams.conf import StreamSettings, stream_settings
from streams.core.names import name_without_number
from streams.db import driver
from streams.reading.position_notifications import PositionListener
from streams.replication.common.command_counts import CommandCounts
from streams.replication.common.reader_rows import ReaderRows
from streams.replication.errors import DatabaseRestored
from streams.replication.protocol.announcer import Announcer, position_line
from streams.replication.protocol.commands import Position, RData
from streams.replication.protocol.connection import CloseReason, Limits
from streams.replication.protocol.rights import RightsTable
from streams.replication.server.broadcast_reader import BroadcastReader, Piece, Round
from streams.replication.server.client import ReplicationClient
from streams.replication.server.probed import be_probed
from streams.runtime.logs import Condition, LineBound, get_logger

log = get_logger(__name__)
T = TypeVar("T")

POLL_SECONDS = 1.0
RETRY_SECONDS = 0.2
FIGURES_SECONDS = 1.0
FORGET_EVERY_SECONDS = 30.0
#: Every client receives the answer to a REPLICATE. For the clients that did not ask, answers within this time are
#: combined.
ANSWER_OTHERS_SECONDS = 0.05
#: The least time between two answers to one client that asks, and between two answers to the clients that did not ask.
#: A client that asks again must also have read its last answer. All its requests until then get one answer.
ANSWER_AGAIN_SECONDS, OTHERS_AGAIN_SECONDS = 0.1, 1.0
#: A client has read its last answer when fewer bytes than this wait in its buffer.
ANSWER_READ_BYTES = 4 * 1024
#: A client for which more bytes than this are unsent gets no relayed lines, and no positions for which others have asked.
#: Facts would come late behind them, and a client that sends many such lines, or asks each second, would have slow ones cut.
RELAY_BYTES = 16 * 1024
#: The time of work for clients that send a lot, after which the loop rests.
REST_FROM_SECONDS = 0.002
#: The share of the loop's time for clients that each send little, and the most of it that may be saved up. Eight hundred
#: clients that send two kilobytes a second need all of it. When the budget is used up, they take turns like clients that
#: send a lot.
FREE_SHARE, FREE_MOST_SECONDS = 0.1, 0.02
#: The most clients, of those that connected and left within a second, that get a row in the table of readers.
MOST_LOST = 100
#: The most log lines about single clients within ``CLIENT_LINES_SECONDS``. Further clients are not logged.
CLIENT_LINES, CLIENT_LINES_SECONDS = 100, 10.0
#: The most log lines about facts that are too long for a line, within the same time. All are counted.
OVERSIZE_LINES = 10
#: The most choices of streams whose lines are joined before they are written. With more choices, the lines of each stream
#: are written on their own, which takes more writes.
MOST_CHOICES = 16
#: The most bytes of lines that are written as one piece. Pieces wait as references to bytes that many connections share. But each
#: connection's transport copies the piece that it receives, and with TLS it encrypts the piece and counts it no more.
PIECE_BYTES = 64 * 1024
#: While more than this number of bytes waits for every client, no further facts are read.
PACE_BYTES = 1024 * 1024
#: The server checks for slow clients once a second, and after each such number of written bytes.
CHECK_EVERY_BYTES = 1024 * 1024


class RelayedLine(NamedTuple):
    """The line of a command that one client has sent for all others. ``sender`` is None if another server has received it."""

    word: str
    data: bytes
    sender: ReplicationClient | None


class FreeTime:
    """The budget of the event loop's time for clients that send little.

    While the budget lasts, the input of such clients is handled at once. Otherwise they take turns like clients that
    send a lot.
    """

    def __init__(self) -> None:
        self._seconds = FREE_MOST_SECONDS
        self._at = -math.inf

    def has_some(self, now: float) -> bool:
        """Returns true if the budget is not used up at ``now`` (monotonic).

        The budget grows by ``FREE_SHARE`` of the time that passes, up to ``FREE_MOST_SECONDS``.
        """
        self._seconds = min(self._seconds + (now - self._at) * FREE_SHARE, FREE_MOST_SECONDS)
        self._at = now
        return self._seconds > 0

    def spend(self, seconds: float) -> None:
        self._seconds -= seconds


class Broadcaster:
    """The sending part of a replication server: its clients, and the rounds that read and send facts."""

    def __init__(self, settings: StreamSettings | None = None, served_by: str = "") -> None:
        self.settings = settings or stream_settings()
        self.rights = RightsTable(self.settings.wire_rights)
        self.streams = registry.announced()
        self.clients: dict[str, ReplicationClient] = {}
        self.closed: Counter[str] = Counter()
        self.counts = CommandCounts()
        self.updates_sent: Counter[str] = Counter()
        self.facts_sent = self.lines_sent = self.oversize_facts = self.rounds = 0
        instance = name_without_number(self.settings.writer)
        self._announcer = Announcer(
            self.streams,
            stand_in=instance,
            in_memory=[stream.name for stream in registry.all_streams() if stream.declaration.in_memory],
            announced_as={
                s.name: s.declaration.announced_as for s in registry.all_streams() if s.declaration.announced_as
            },
        )
        name = f"replsite broadcaster {served_by or instance}"
        self._reader = BroadcastReader(self._announcer, self.settings.database, self.settings.line_limit_bytes, name)
        self._reader_rows = ReaderRows("connection", served_by or instance, self.settings.database)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="broadcaster")
        self._figure_threads = ThreadPoolExecutor(1, thread_name_prefix="reader-rows")
        self._wake = asyncio.Event()
        self._moved: set[str] = set()
        self._reads_all = True
        #: Held from the reading of a round until its lines are sent. Meanwhile no other code may use announcer and
        #: backlog. Without this lock, the listener's thread reads facts 5 to 7. Before these facts count as sent, the
        #: database thread begins a round at 5 as well. Clients would receive the facts twice.
        self._in_round = threading.Lock()
        self._all_due = 0.0
        self._is_restored = False
        self._listener: PositionListener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._lost: list[ReplicationClient] = []
        self._unchecked_bytes = 0
        #: Clients that send a lot wait for ``turn``. A client that has sent almost nothing yet waits for
        #: ``first_turn``, and so only for other such clients.
        self.turn, self.first_turn = asyncio.Lock(), asyncio.Lock()
        self.free_time = FreeTime()
        self.client_lines = LineBound(CLIENT_LINES, CLIENT_LINES_SECONDS)
        self._oversize_lines = LineBound(OVERSIZE_LINES, CLIENT_LINES_SECONDS)
        self._without_rest = 0.0
        self._replicates = 0
        self._answer_others: asyncio.TimerHandle | None = None
        self._others_answered_at = -math.inf
        self._asked_again: dict[str, ReplicationClient] = {}
        self._answer_again: asyncio.TimerHandle | None = None
        self._position_lines: list[Piece] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._round_at = time.monotonic()
        self._database_away = Condition(log, "broadcaster.database_away", "broadcaster.database_back")
        self._readers_not_written = Condition(
            log, "broadcaster.readers_not_written", "broadcaster.readers_written_again"
        )

    @property
    def silent_seconds(self) -> float | None:
        """Returns the seconds since the broadcaster's task last completed a round.

        Returns infinity if one of the broadcaster's tasks has ended, and None if the broadcaster is not running.
        """
        if not self._tasks:
            return None
        return math.inf if any(task.done() for task in self._tasks) else time.monotonic() - self._round_at

    @property
    def limits(self) -> Limits:
        given = self.settings
        return Limits(
            given.ping_interval_seconds, given.ping_timeout_seconds, given.close_limit_seconds, given.line_limit_bytes
        )

    @property
    def commands(self) -> Counter[str]:
        """Returns ``{command word: number of received commands}``."""
        found: Counter[str] = Counter()
        for key, number in self.counts.received.items():
            found[key.partition(" ")[0]] += number
        return found

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the broadcaster. It sends the facts above the positions that are stored now.

        Raises the driver's errors if the database cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._announcer.start(await self._in_thread(self._reader.snapshot))
        self._listener = PositionListener(self._notified, self.settings.database, "broadcaster")
        await self._in_thread(self._listener.start)
        self._tasks = [
            self._loop.create_task(self._broadcast(), name="broadcast"),
            self._loop.create_task(self._housekeeping(), name="housekeeping"),
        ]

    async def stop(self) -> None:
        """Closes all clients, and stops. Waits at most a second until the clients have taken their last bytes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for client in list(self.clients.values()):
            client.close(CloseReason.STOPPING, "server stopping")
        deadline = time.monotonic() + 1.0
        while self.clients and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the transports do not notify when they are empty
        await self._store_readers([*self._lost, *self.clients.values()])
        if self._listener is not None:
            await self._in_thread(self._listener.stop)
        await self._in_thread(self._reader.close)
        self._threads.shutdown(wait=False)
        self._figure_threads.shutdown(wait=False)

    # --- clients --------------------------------------------------------------------------------------------------

    def join(self, client: ReplicationClient) -> None:
        self.clients[client.key] = client

    def leave(self, client: ReplicationClient) -> None:
        """Removes a client, and counts the reason why it was closed.

        If the client has a row in the table of readers, or has sent REPLICATE, its end is written to this table. For
        other clients, an end is written only if fewer than ``MOST_LOST`` ends are waiting to be written.
        """
        if self.clients.pop(client.key, None) is not None:
            self.counts.add_sent(client.label, client.connection.pop_words())
            self.closed[str(client.connection.close_reason)] += 1
            self._asked_again.pop(client.key, None)
            if client.is_stored or client.has_replicated or len(self._lost) < MOST_LOST:
                self._lost.append(client)

    def rest_after(self, seconds: float) -> float:
        """Returns the seconds to rest after ``seconds`` of work for clients that send a lot.

        The rest is 0 until the work since the last rest adds up to ``REST_FROM_SECONDS``. Then the rest is as long as
        this work. Without rests, a thread that answers an HTTP request would wait five milliseconds each time that it
        needs the lock of the Python interpreter.
        """
        self._without_rest += seconds
        if self._without_rest < REST_FROM_SECONDS:
            return 0.0
        rest, self._without_rest = self._without_rest, 0.0
        return rest

    def name_client(self, client: ReplicationClient, name: str) -> None:
        """Sets the client's name. Commands that were sent to the client before are counted under its former label."""
        self.counts.add_sent(client.label, client.connection.pop_words())
        client.name, client.label = name, self.counts.label(name)

    def count_sent(self) -> None:
        """Adds the commands that were sent to single clients, such as PING, to the counts.

        Lines that many clients share are counted when they are written.
        """
        for client in self.clients.values():
            self.counts.add_sent(client.label, client.connection.pop_words())

    def limit_streams(self, client: ReplicationClient, streams: Sequence[str]) -> None:
        """Makes a client receive only lines of ``streams``, or of all streams if ``streams`` is empty.

        The client's rights may exclude some of these streams.
        """
        allowed = client.rights.of_streams(self.streams)
        asked = frozenset(streams) & frozenset(self.streams) if streams else None
        client.follows = asked if allowed is None else allowed if asked is None else allowed & asked

    def answer_replicate(self, client: ReplicationClient) -> None:
        """Answers a REPLICATE: sends the positions of all writers to this client at once, and to all other clients soon.

        The other clients get the positions once for all REPLICATEs that arrive before. If this client got its last
        answer a moment ago, or has not read this answer yet, the new answer is delayed. Until then further REPLICATEs
        of this client get no separate answers.
        """
        client.has_replicated = True
        now = time.monotonic()
        if client.key in self._asked_again:
            return
        if not self._may_answer(client, now):
            self._asked_again[client.key] = client
            if self._answer_again is None:
                self._answer_again = asyncio.get_running_loop().call_later(ANSWER_AGAIN_SECONDS, self._answer_late)
            return
        self._answer([client], now)

    @staticmethod
    def _may_answer(client: ReplicationClient, now: float) -> bool:
        return now >= client.answered_at + ANSWER_AGAIN_SECONDS and client.buffered_bytes < ANSWER_READ_BYTES

    def _answer_late(self) -> None:
        self._answer_again, now = None, time.monotonic()
        ready = [client for client in self._asked_again.values() if not client.is_open or self._may_answer(client, now)]
        for client in ready:
            del self._asked_again[client.key]
        if ready:
            self._answer(ready, now)
        if self._asked_again:
            self._answer_again = asyncio.get_running_loop().call_later(ANSWER_AGAIN_SECONDS, self._answer_late)

    def _answer(self, clients: list[ReplicationClient], now: float) -> None:
        self._replicates += 1
        self._send_positions(clients)
        for client in clients:
            client.answered_at = now
        if self._answer_others is None:
            # A program may connect, send REPLICATE and disconnect again and again. Each time it is a new client, so the
            # limit on answers to one client does not slow it down. So the answers to the other clients have a limit, too.
            others_in = max(self._others_answered_at + OTHERS_AGAIN_SECONDS - now, ANSWER_OTHERS_SECONDS)
            self._answer_others = asyncio.get_running_loop().call_later(others_in, self._answer_the_others)

    def relay(self, lines: Sequence[RelayedLine], wants: Callable[[ReplicationClient], bool] = lambda _: True) -> int:
        """Sends lines to all clients of this server for which ``wants`` returns true, but no line to its own sender.

        Returns the number of clients that were left out, because too much waits for them.
        """
        all_wanting = [client for client in self.clients.values() if wants(client)]
        wanting = {client for client in all_wanting if client.unsent_bytes <= RELAY_BYTES}
        senders = [line.sender for line in lines]
        data = b"".join([line.data for line in lines])
        self._write(data, Counter(line.word for line in lines), wanting, senders)
        for line, sender in zip(lines, senders, strict=True):
            if sender in wanting and sender.is_open:  # `_write` has counted it for its sender, too
                self.counts.add_sent(sender.label, Counter({line.word: -1}))
        return len(all_wanting) - len(wanting)

    def positions(self) -> dict[str, dict[str, int]]:
        """Returns the positions up to which all facts were sent, as ``{stream: {writer: position}}``."""
        found: dict[str, dict[str, int]] = {}
        for stream, writer, position in self._announcer.positions():
            found.setdefault(stream, {})[writer] = position
        return found

    def _answer_the_others(self) -> None:
        self._answer_others, self._others_answered_at = None, time.monotonic()
        self._send_positions(
            [
                client
                for client in self.clients.values()
                if client.answered < self._replicates and client.unsent_bytes <= RELAY_BYTES
            ]
        )

    def _send_positions(self, clients: list[ReplicationClient]) -> None:
        if self._position_lines is None:
            self._position_lines = [
                Piece(stream, position_line(stream, writer, at, at), 1)
                for stream, writer, at in self._announcer.positions()
            ]
        self._write_pieces(self._position_lines, clients)
        for client in clients:
            client.answered = self._replicates

    def _write_pieces(self, pieces: Sequence[Piece], clients: Sequence[ReplicationClient]) -> None:
        by_stream: dict[str, list[Piece]] = {}
        for piece in pieces:
            by_stream.setdefault(piece.stream, []).append(piece)
        groups: dict[frozenset[str], list[ReplicationClient]] = {}
        for client in clients:
            streams = frozenset(by_stream) if client.follows is None else client.follows.intersection(by_stream)
            groups.setdefault(streams, []).append(client)
        if len(groups) <= MOST_CHOICES:
            for streams, group in groups.items():
                self._write_joined([piece for piece in pieces if piece.stream in streams], group)
            return
        # With the bytes of each group, a thousand clients with different choices that read nothing would fill the memory
        # with a thousand copies.
        for stream, of_stream in by_stream.items():
            followers = [client for streams, group in groups.items() if stream in streams for client in group]
            self._write_joined(of_stream, followers)

    def _write_joined(self, pieces: Sequence[Piece], clients: list[ReplicationClient]) -> None:
        rows = sum(piece.rows for piece in pieces)
        words = Counter({RData.WORD: rows, Position.WORD: sum(piece.lines for piece in pieces) - rows})
        self._write(b"".join([piece.data for piece in pieces]), words, clients)

    def _write(
        self,
        data: bytes,
        words: Counter[str],
        clients: Collection[ReplicationClient],
        senders: Iterable[ReplicationClient | None] = (),
    ) -> None:
        # ``senders`` are those of the lines in ``data``: no client gets its own lines.
        now, lines, rest = time.monotonic(), words.total(), iter(senders)
        for label, number in Counter(client.label for client in clients if client.is_open).items() if lines else ():
            self.counts.add_sent(label, Counter({word: count * number for word, count in words.items()}))
        for piece, number in _pieces_of(data, lines):
            whole: list[tuple[bytes | memoryview, int]] = [(piece, number)]
            parts = _without_own(piece, islice(rest, number))
            for client in clients:
                for part, of_part in parts.get(client, whole):
                    client.write_shared(part, of_part, now)
        self._unchecked_bytes += len(data)
        if self._unchecked_bytes > CHECK_EVERY_BYTES:
            self._cut_slow_clients(now)

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _notified(self, names: list[str]) -> None:
        # The reading part is made in this thread, the listener's. A round in the database thread would need three
        # thread switches between a commit and the followers, which take as long as all other work of the round.
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        streams = set(names)
        if not streams or not self.clients or not self._in_round.acquire(blocking=False):
            loop.call_soon_threadsafe(self._request_round, streams)
            return
        try:
            result = self._reader.round(streams)
        except BaseException as error:
            self._in_round.release()
            loop.call_soon_threadsafe(self._request_round, set())
            if not isinstance(error, driver.DatabaseError | DatabaseRestored):
                raise
        else:
            loop.call_soon_threadsafe(self._finish_round, result)

    def _finish_round(self, result: Round) -> None:
        try:
            self._send_round(result)
        finally:
            self._in_round.release()
        if result.has_more:
            self._wake.set()

    def _request_round(self, streams: set[str]) -> None:
        self._moved |= streams
        self._reads_all = self._reads_all or not streams
        self._wake.set()

    async def _broadcast(self) -> None:
        while True:
            await self._wait()
            self._wake.clear()  # before the round: a request during the round starts the next one
            try:
                if self._is_restored:
                    await self._restart()
                while await self._round(self._pop_moved()):
                    self._round_at = time.monotonic()
                    await self._pace()
                self._round_at = time.monotonic()
                self._database_away.ends()
            except DatabaseRestored as error:
                log.warning("broadcaster.database_restored", error=str(error))
                self._is_restored = True
                self._request_round(set())
            except driver.DatabaseError as error:
                self._database_away.begins(error)
                await asyncio.sleep(RETRY_SECONDS)
                self._request_round(set())

    async def _restart(self) -> None:
        # A restored database gives out IDs again that clients have received already, so no client may stay connected.
        snapshot = await self._begin_round(self._reader.reload)
        try:
            for client in list(self.clients.values()):
                client.close(CloseReason.RESTORED, "the database was restored")
            self._announcer.start(snapshot)
            self._position_lines = None
            self._is_restored = False
        finally:
            self._in_round.release()

    async def _wait(self) -> None:
        timeout = min(POLL_SECONDS, max(self._announcer.wants_round_at - time.monotonic(), 0.0))
        # Not ``asyncio.wait_for``: it makes a task, which costs iterations of the loop between a notification and the
        # round.
        timer = asyncio.get_running_loop().call_later(timeout, self._request_round, set())
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _pop_moved(self) -> set[str] | None:
        # Most streams are idle. All of them are read once per ``POLL_SECONDS``, and when a deferred step of the
        # announcer is due.
        now = time.monotonic()
        if now >= min(self._all_due, self._announcer.wants_round_at):
            self._reads_all = True
        if self._reads_all:
            self._all_due = now + POLL_SECONDS
        moved, self._moved = (None if self._reads_all else self._moved), set()
        self._reads_all = False
        return moved

    async def _round(self, only: set[str] | None) -> bool:
        """Makes one round over the streams in ``only``. Returns true if the next round has to follow at once.

        If ``only`` is None, the round is over all streams.
        """
        if not self.clients:
            snapshot = await self._begin_round(self._reader.snapshot)
            try:
                if self.clients:
                    self._reads_all = True
                    # A client connected during the read, and may have been sent the old positions. With `jump_to` this
                    # client would miss the facts between the old positions and the snapshot. So a round has to send these
                    # facts.
                    return True
                self._announcer.jump_to(snapshot)
                self._position_lines = None
                return False
            finally:
                self._in_round.release()
        result: Round = await self._begin_round(lambda: self._reader.round(only))
        try:
            self._send_round(result)
        finally:
            self._in_round.release()
        return bool(result.has_more)

    async def _begin_round(self, work: Callable[[], T]) -> T:
        # The caller ends the round by releasing ``_in_round``.
        def locked() -> T:
            self._in_round.acquire()
            try:
                return work()
            except BaseException:
                self._in_round.release()
                raise

        return await self._in_thread(locked)

    def _send_round(self, result: Round) -> None:
        self._write_pieces(result.pieces, list(self.clients.values()))
        self._position_lines = None
        for done in result.done:
            self._announcer.record_sent(done.stream, done.writer, done.position)
        self._count(result)
        self._moved |= result.has_more

    def _count(self, result: Round) -> None:
        self.rounds += 1
        self.facts_sent += result.facts
        self.lines_sent += result.lines
        self.updates_sent.update(result.rows)
        self.oversize_facts += result.oversize
        if result.oversize and self._oversize_lines.has_room():
            log.warning("broadcaster.oversize_facts", facts=result.oversize, hint="followers fetch them from the table")

    async def _pace(self) -> None:
        # If a single client has less in its buffer, it does not wait: the slow clients are disconnected later.
        while self.clients and min(client.buffered_bytes for client in self.clients.values()) > PACE_BYTES:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # the transports do not notify when they are empty
        await asyncio.sleep(0)

    # --- housekeeping ---------------------------------------------------------------------------------------------

    async def _housekeeping(self) -> None:
        forget_at = 0.0
        while True:
            now = time.monotonic()
            self._cut_slow_clients(now)
            closed, self._lost = self._lost, []
            await self._store_readers([*closed, *self.clients.values()])
            if now >= forget_at:
                forget_at = now + FORGET_EVERY_SECONDS
                await self._write_readers(self._reader_rows.forget_old)
            await asyncio.sleep(FIGURES_SECONDS)

    def _cut_slow_clients(self, now: float) -> None:
        given = self.settings
        self._unchecked_bytes = 0
        for client in list(self.clients.values()):
            client.cut_when_slow(given.send_buffer_limit_bytes, given.send_stall_limit_seconds, now, self.client_lines)

    async def _store_readers(self, clients: list[ReplicationClient]) -> None:
        """Writes a row for each client to the table of readers. Closes clients that an operator wants to disconnect."""
        positions, now = self.positions(), time.monotonic()
        rows = [{**p.figures(now), "positions": _sent_to(p, positions)} for p in clients]
        for client in clients:
            client.is_stored = True
        unwanted = await self._write_readers(lambda: self._reader_rows.write(rows)) or {}
        for client in [client for client in clients if client.key in unwanted]:
            log.warning("replication.disconnected", client=client.name, address=client.address, by=unwanted[client.key])
            client.close(CloseReason.DISCONNECTED, "disconnected by an operator")

    async def _write_readers(self, write: Callable[[], T]) -> T | None:
        # The table of readers only shows to people how far readers are: its errors must not stop the sending of facts.
        try:
            written = await asyncio.get_running_loop().run_in_executor(self._figure_threads, write)
        except driver.DatabaseError as error:
            self._readers_not_written.begins(error)
            return None
        self._readers_not_written.ends()
        return written

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def figures(self) -> dict[str, Any]:
        """Returns the broadcaster's figures for metrics, by name."""
        return {
            "connections": len(self.clients),
            "rounds": self.rounds,
            "facts_sent": self.facts_sent,
            "lines_sent": self.lines_sent,
            "oversize_facts": self.oversize_facts,
            "buffered_bytes": sum(client.buffered_bytes for client in self.clients.values()),
            "closed": dict(self.closed),
            "commands": dict(self.commands),
        }


def _pieces_of(data: bytes, lines: int) -> Iterator[tuple[bytes, int]]:
    """Yields the lines of ``data`` in pieces of at most ``PIECE_BYTES``, each with its number of lines; a longer line alone.

    ``lines`` is the number of lines in ``data``.
    """
    begin = 0
    while len(data) - begin > PIECE_BYTES:
        end = data.rfind(b"\n", begin, begin + PIECE_BYTES) + 1 or data.find(b"\n", begin) + 1 or len(data)
        number = data.count(b"\n", begin, end)
        yield data[begin:end], number
        begin, lines = end, lines - number
    yield data[begin:], lines


def _without_own(
    piece: bytes, senders: Iterable[ReplicationClient | None]
) -> dict[ReplicationClient | None, list[tuple[bytes | memoryview, int]]]:
    """Returns what lies between the lines of each sender in ``piece``, as parts of it, each with its number of lines.

    It takes a time for each line: to join the other lines for each sender took half a second for 2,000 lines of 2,000 senders.
    """
    view, end, number = memoryview(piece), 0, 0
    found: dict[ReplicationClient | None, list[tuple[bytes | memoryview, int]]] = {}
    behind: dict[ReplicationClient | None, tuple[int, int]] = {}
    for sender in senders:
        begin, first = behind.get(sender, (0, 0))
        found.setdefault(sender, []).append((view[begin:end], number - first))
        end, number = piece.index(b"\n", end) + 1, number + 1
        behind[sender] = end, number
    for sender, (begin, first) in behind.items():
        found[sender].append((view[begin:], number - first))
    return found


def _sent_to(client: ReplicationClient, positions: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    if not client.has_replicated:
        return {}
    return {
        name: of_stream for name, of_stream in positions.items() if client.follows is None or name in client.follows
    }


_of_process: Broadcaster | None = None


def process_broadcaster(served_by: str = "") -> Broadcaster:
    """Returns the broadcaster of this process. The first call creates the broadcaster, but does not start it."""
    global _of_process  # noqa: PLW0603 - one per process by its nature
    if _of_process is None:
        _of_process = Broadcaster(served_by=served_by)
        be_probed(_of_process)
    return _of_process
