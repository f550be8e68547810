"""Delivers chunks to a handler so that each fact has its effect once, and isolates a fact on which the handler fails.

The handler runs in the transaction that moves the cursor. If the transaction fails, nothing is stored. Then the chunk
is split in halves again and again, until a chunk of a single fact fails. This fact is retried. After the last attempt
the handler's ``on_failure`` decides: the fact is stored as a dead letter, or the reader stops. A lost database
connection does not count as a failure of the handler. It raises ``ConnectionLost``, and the caller continues from the
stored cursor. A handler that is not ``atomic`` runs outside of a transaction, before the cursor moves. An error of a
commit hook is only logged, because the transaction is already committed.

This module's code runs in the handler's thread, on Django's connection of this thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import Error as DjangoError
from django.db import connections

from streams.core.tokens import VectorToken
from streams.db import driver
from streams.db.snapshots import keeps_snapshot
from streams.errors import HandlerFailed, ReaderFenced
from streams.follow.chunks import Chunk
from streams.follow.dead_letters import park
from streams.follow.handler_transaction import ConnectionLost, as_connection_lost, call_undivided, commit_once
from streams.follow.handlers import Handler, OnFailure
from streams.follow.stored_cursors import CursorMoved, Owner, lock_cursor, move_cursor
from streams.runtime.logs import get_logger
from streams.runtime.text import error_words

log = get_logger(__name__)
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 30.0
#: SQLSTATEs with which the cursor is not moved through no fault of the handler: a lock or time limit of the role, a deadlock.
_OF_OTHERS = frozenset({"55P03", "57014", "40P01"})


@contextmanager
def _not_the_handler() -> Iterator[None]:
    try:
        yield
    except DjangoError as error:
        if driver.sqlstate(error) not in _OF_OTHERS:
            raise
        raise ConnectionLost(driver.explain(error)) from error


class Stopped(Exception):
    """The exception that ends a delivery because the reader must stop before the whole chunk is handled."""


class Delivery:
    """The object that delivers chunks to one handler under one lease. ``stored`` is the token of the stored cursor."""

    def __init__(
        self,
        handler: Handler,
        owner: Owner,
        stored: VectorToken,
        pause: Callable[[float], bool],
        session_lock: int | None = None,
    ) -> None:
        self.stored = stored
        self._session_lock = session_lock
        self._place = ""
        self._locks_first: bool | None = None
        """True if transactions keep one snapshot. A heartbeat that is stored while such a one is open would keep it from moving
        the cursor, so that a handler that takes long would never succeed."""
        self._handled = self._parked = 0
        self._handler = handler
        self._owner = owner
        self._pause = pause  # waits for this number of seconds; returns True if the reader must stop
        self._using = handler.effects_database

    def deliver(self, chunk: Chunk, after: Callable[[VectorToken, Chunk], VectorToken], upto: VectorToken) -> None:
        """Calls the handler until the whole chunk is handled, and moves the cursor to ``upto``.

        If the chunk has to be split, ``after(cursor, part)`` is called with the stored cursor and the next part of the
        chunk. It must return the cursor to store after this part was handled.

        Raises ``HandlerFailed``, ``ReaderFenced``, ``ConnectionLost``, ``CursorMoved`` or ``Stopped``.
        """
        # A stack: the first half of a failed chunk is delivered before the second. A part without a goal moves the cursor to
        # its own end.
        waiting: list[tuple[Chunk, VectorToken | None]] = [(chunk, upto)]
        if self._handler.each:
            *firsts, last = chunk.singles()
            waiting = [(last, upto), *((part, None) for part in reversed(firsts))]
        while waiting:
            part, given = waiting.pop()
            goal = after(self.stored, part) if given is None else given
            if self._handler.each and self._pause(0):
                raise Stopped
            error = self._attempt(part, goal)
            if error is None:
                continue
            if part.fact_count == 1:
                self._insist(part, goal, error)
            else:
                first, second = part.halves()
                waiting += [(second, goal), (first, after(self.stored, first))]

    def store(self, token: VectorToken) -> None:
        """Moves the stored cursor to ``token``. The caller must know that all facts up to ``token`` were handled.

        Raises ``ReaderFenced``, ``ConnectionLost`` or ``CursorMoved``.
        """
        if token != self.stored:
            with as_connection_lost():
                self._move(token, (0, 0))

    def pop_counts(self) -> tuple[int, int]:
        """Returns two numbers of facts since the last call of this method: (handled, parked)."""
        counts = self._handled, self._parked
        self._handled = self._parked = 0
        return counts

    # --- attempts -------------------------------------------------------------------------------------------------

    def _attempt(self, chunk: Chunk, goal: VectorToken) -> Exception | None:
        counts = (chunk.fact_count, 0)
        try:
            if self._handler.atomic:
                self._move(goal, counts, lambda: call_undivided(self._handler, chunk))
                return None
            self._handler.call(chunk)
        except (ReaderFenced, CursorMoved, ConnectionLost):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure, and deferred constraints
            if not self._handler.atomic:
                driver.end_sessions()
            return error
        connection = connections[self._using]
        if driver.has_ended(connection) or not connection.get_autocommit():
            driver.end_sessions()
        self._move_after_effects(goal, counts)
        return None

    def _move_after_effects(self, goal: VectorToken, counts: tuple[int, int]) -> None:
        # The effects exist, and the cursor has not moved yet. After a crash here, the chunk is handled a second time. If the
        # cursor cannot be moved now, the handler must not be called again and again meanwhile.
        handler, pause_seconds = self._handler, FIRST_RETRY_SECONDS
        while True:
            try:
                with as_connection_lost():
                    self._move(goal, counts)
                return
            except ConnectionLost as error:
                log.warning(
                    "reader.cursor_not_moved", reader=handler.reader, stream=handler.stream, error=error_words(error)
                )
                driver.end_sessions()
                if self._pause(pause_seconds):
                    raise Stopped from error
                pause_seconds = min(pause_seconds * 2, LONGEST_RETRY_SECONDS)

    def _move(self, token: VectorToken, counts: tuple[int, int], work: Callable[[], None] | None = None) -> None:
        """Calls ``work``, and moves the stored cursor to ``token``, in one transaction.

        ``counts`` is a pair of numbers of facts (handled, parked). They are added to the counts of this delivery after
        the commit.

        Raises ``ConnectionLost`` if the database connection broke.
        """
        place = ""

        def committed() -> None:
            self.stored, self._place = token, place
            self._handled += counts[0]
            self._parked += counts[1]

        def handle_and_move() -> None:
            nonlocal place
            connection, handler = connections[self._using], self._handler
            if work is not None:
                if self._locks_first is None:
                    self._locks_first = keeps_snapshot(connection)
                if self._locks_first:
                    with _not_the_handler(), connection.cursor() as cursor:
                        lock_cursor(cursor, handler.reader, handler.stream)
                work()
            # The cursor moves last, to lock its row only briefly.
            with _not_the_handler(), connection.cursor() as cursor:
                way, hold = (self.stored, token), (self._session_lock, self._place)
                place = move_cursor(cursor, self._owner, handler.stream, way, counts, hold)

        commit_once(self._handler, handle_and_move, committed)

    # --- one difficult fact ---------------------------------------------------------------------------------------

    def _insist(self, chunk: Chunk, goal: VectorToken, error: Exception) -> None:
        """Retries the single fact of ``chunk`` with growing pauses. After the last attempt, the handler's ``on_failure`` decides.

        Depending on ``on_failure``, stores the fact as a dead letter or raises ``HandlerFailed``. Raises ``Stopped`` if
        the reader must stop before the next attempt.
        """
        handler, attempts, pause_seconds = self._handler, 1, self._handler.retry_seconds
        fact = chunk.facts[0]
        while handler.attempts is None or attempts < handler.attempts:
            log.warning(
                "reader.fact_failed", reader=handler.reader, stream=handler.stream, writer=fact.writer, token=fact.token,
                attempt=attempts, error=error_words(error),
            )  # fmt: skip
            if self._pause(pause_seconds):
                raise Stopped from error
            pause_seconds = min(pause_seconds * 2, LONGEST_RETRY_SECONDS)
            attempts += 1
            again = self._attempt(
                chunk.unloaded_copy(), goal
            )  # instances that the failed attempt changed are loaded again
            if again is None:
                return
            error = again
        where = f"stream {fact.stream!r}, token {fact.token} of writer {fact.writer!r}"
        if handler.on_failure is OnFailure.STOP:
            raise HandlerFailed(
                f"Reader {handler.reader!r}: the handler failed {attempts} times on one fact ({where}): "
                f"{type(error).__name__}: {error_words(error)}. Mend the handler and start it again: the cursor stands in front "
                f"of that fact. To have such facts put aside, declare on_failure=OnFailure.PARK."
            ) from error
        failure, made = error, attempts

        # One transaction stores the dead letter and moves the cursor: the fact is never lost, and never both parked and handled.
        with as_connection_lost():
            self._move(goal, (0, 1), lambda: park(handler, fact, failure, made))
        log.error("reader.fact_parked", reader=handler.reader, where=where, attempts=attempts, error=error_words(error))
