"""The handler loop of a stream that several processes share by key (``by=``). Each process has such a loop.

A transaction takes parts by row locks, reads their next facts, calls the handler with each, and moves the parts' cursors. So
a fact's effects and its part's cursor commit together, and nobody else has the part meanwhile. What a process knows besides,
its window, saves work only. If it is out of date, the cursors that were taken say so.

If the handler fails on facts together, their parts' next facts are handled one by one. If it fails on a single fact, the part
waits for the next attempt. After the last attempt the fact is parked. Meanwhile all other parts go on.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, transaction

from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import HandlerFailed
from streams.follow.chunks import Chunk
from streams.follow.dead_letters import park
from streams.follow.delivery import LONGEST_RETRY_SECONDS, Delivery
from streams.follow.handler_transaction import ConnectionLost, as_connection_lost, call_undivided, commit_once, works
from streams.follow.handlers import OnFailure
from streams.follow.part_cursors import PartCursors, processes
from streams.follow.part_plan import PARTS, Part, Plan, Window, share_of
from streams.follow.part_source import KeyFact, PartSource
from streams.follow.stored_cursors import CursorMoved
from streams.follow.table_loop import HandlerLoop
from streams.runtime.logs import get_logger
from streams.runtime.text import error_words

log = get_logger(__name__)
#: A transaction has about as many facts as are handled in this time, so that parts are soon free for others. What the
#: transaction itself takes is added: where commits are slow, small transactions would only be more of them.
BATCH_SECONDS = 0.1
MOST_FACTS = 1_000
#: What is known of facts that others handle, or that wait behind a failed one, needs about 100 bytes a fact.
MOST_WINDOW = 100_000
#: How often a process counts the others, and passes parts without facts.
TICK_SECONDS = 0.5
#: The first and the longest pause of a process that comes too late: others have the parts, or have handled the facts. So a
#: fact of a quiet stream, which wakes all processes, is one process's work, and the others cost little. The longest one is for
#: each process that runs, and a pause is up to twice as long by chance: some process comes soon, however many there are.
LATE_SECONDS, MOST_LATE_SECONDS = 0.01, 0.03
#: SQLSTATE of a statement that cannot change a row which another transaction has changed, in a transaction that keeps one
#: snapshot. Then another process was first.
_CONFLICT = "40001"


@dataclass(slots=True)
class _Batch:
    """The facts of one transaction."""

    parts: list[Part] = field(default_factory=list)
    plan: Plan = field(default_factory=lambda: Plan((), {}))
    facts: list[KeyFact] = field(default_factory=list)
    is_read: bool = False
    failed: bool = False
    handler_seconds: float = 0.0
    handled: Counter[int] = field(default_factory=Counter)
    parked: Counter[int] = field(default_factory=Counter)


class PartsLoop(HandlerLoop):
    """Runs one handler with ``by`` until ``stop`` is set, or until all facts are handled, by whichever process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._source = self._parts_source = PartSource(self.handler, self._streams_using)
        self._cursors = PartCursors(self.handler.reader, self.handler.stream, self.handler.by)
        self._window = Window(0)
        self._complete_upto = self._key = 0
        self._parts: list[Part] = []
        self._processes = self._most = 1
        self._tick_due = self._late_seconds = 0.0

    def _unite(self, cursor: Any) -> None:
        """Leaves the parts as they are."""

    def _open_delivery(self) -> Delivery:
        delivery = super()._open_delivery()
        with (
            as_connection_lost(),
            transaction.atomic(using=self._using, durable=True),
            connections[self._using].cursor() as cursor,
        ):
            self._key = driver.reader_key(cursor, self.handler.reader)
            self._cursors.begin(cursor, delivery.stored.entries, is_alone=processes(cursor, self._key) <= 1)
            self._window = Window(min((part.position for part in self._cursors.all(cursor)), default=0))
        self._complete_upto = 0
        return delivery

    def _follow(self, delivery: Delivery) -> None:
        waited = True
        while not self._stop.is_set():
            if time.monotonic() >= self._tick_due:
                self._tick()
            elif waited:
                self._read_parts()
            with as_connection_lost():
                has_more = self._retries.go_on(self._stop)
            waited = not (self._work() or self._widen() or has_more)
            if waited and self._until_caught_up and not len(self._window):
                break
            if waited:
                self._wait()
        self._tick()
        with as_connection_lost():
            self._retries.leave()

    def _read_parts(self) -> None:
        with self._unless_another_was_first() as cursor:
            self._parts = self._cursors.all(cursor)
        if len(self._parts) < PARTS:
            raise CursorMoved
        self._pass_over(self._parts)
        self.cursor = VectorToken(self._parts[0].position)

    def _pass_over(self, parts: list[Part]) -> None:
        if not all(self._window.pass_over(part.number, part.position) for part in parts):
            raise CursorMoved

    def _tick(self) -> None:
        self._read_parts()
        with self._unless_another_was_first() as cursor:
            self._processes = processes(cursor, self._key)
            passable, lock = self._window.passable(self._parts), self._source.session_lock
            self._cursors.pass_empty(cursor, passable, self._window.upto, lock)
            self._cursors.store(cursor)
        self._tick_due = time.monotonic() + TICK_SECONDS

    def _wait(self) -> None:
        window, parts = self._window, self._parts
        others_have_some = any(window.ready(parts, apart=apart) for apart in (True, False))
        if others_have_some or window.missed:
            self._late_seconds = min(max(LATE_SECONDS, 2 * self._late_seconds), MOST_LATE_SECONDS * self._processes)
        window.missed = 0
        if not others_have_some:
            seconds = min(window.next_attempt(parts), stream_settings().heartbeat_seconds)
            if window.passable(parts) and not self._late_seconds:
                seconds = min(seconds, max(0.0, self._tick_due - time.monotonic()))
            self._news.wait(seconds)
            self._news.clear()  # before the positions are read, as in ``_wait_for_news``
        self._stop.wait(self._late_seconds * 2 * random.random())  # noqa: S311 - no secret

    @contextmanager
    def _unless_another_was_first(self) -> Iterator[Any]:
        """Yields a cursor for statements that may be left out, as another process does the same or the next round does."""
        try:
            with as_connection_lost(), connections[self._using].cursor() as cursor:
                yield cursor
        except ConnectionLost as error:
            if driver.sqlstate(error.__cause__ or error) != _CONFLICT:
                raise

    def _widen(self) -> bool:
        """Reads which facts there are above the window. Returns false if there are none."""
        window, source = self._window, self._parts_source
        if len(window) >= MOST_WINDOW:
            return False
        if window.upto >= self._complete_upto:
            self._complete_upto = source.look(window.upto)
        if window.upto >= self._complete_upto:
            return False
        window.add(*source.parts(window.upto, self._complete_upto))
        return True

    # --- one transaction ------------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Handles facts in one transaction, if there are some that no other process has. Returns false otherwise."""
        for apart in (True, False):
            if (ready := self._window.ready(self._parts, apart=apart)) and self._reserve(ready, apart=apart):
                return True
        return False

    def _reserve(self, ready: list[int], *, apart: bool) -> bool:
        most = 1 if apart else self._most
        batch, started = _Batch(), time.monotonic()

        def work() -> None:
            batch.parts = self._cursors.reserve(
                connections[self._using], ready, min(share_of(self._processes), most), apart=apart
            )
            self._pass_over(batch.parts)
            batch.plan = self._window.plan(batch.parts, most)
            self._handle(batch)

        def committed() -> None:
            self.facts_handled += batch.handled.total()
            self.facts_parked += batch.parked.total()

        try:
            commit_once(self.handler, work, committed)
        except (ConnectionLost, CursorMoved):
            raise
        except Exception as error:
            if not batch.is_read:
                with self._unless_another_was_first():
                    raise
                return False
            with self._unless_another_was_first() as cursor:
                self._store_failure(cursor, batch, error)
        if batch.failed:
            self._read_parts()
        elif batch.facts:
            self._pass_over([Part(number, upto) for number, upto in batch.plan.moves.items()])
            self._late_seconds = self._window.missed = 0
            if not apart:
                self._pace(batch, time.monotonic() - started)
            self._delays.handled(batch.plan.facts[-1][0])
        return bool(batch.parts)

    def _handle(self, batch: _Batch) -> None:
        """Handles the facts, and moves the parts that were taken."""
        handler, facts = self.handler, batch.plan.facts
        if facts:
            batch.facts = self._parts_source.facts(facts)
        connection, stopped = connections[self._using], set[str]()
        # Asked after the parts were taken: who parks a fact of a key, or retries it, has its part.
        if batch.facts and handler.on_failure is OnFailure.STOP:
            stopped = self._cursors.stopped(connection, {fact.key for fact in batch.facts})
        batch.is_read = True
        going = [fact for fact in batch.facts if fact.key not in stopped]
        if len(facts) == 1:
            self._attempt(batch, going)
            if batch.failed:
                return
        else:
            self._call(batch, going)
            batch.handled.update(fact.part for fact in going)
        for fact in batch.facts:
            if fact.key in stopped:
                waits = HandlerFailed(f"It waits: an earlier fact of its key {fact.key!r} is parked.")
                self._park(batch, fact, waits, 0)
        # Without facts, nothing was read on the session that looked, which a crash may have ended: ``_tick`` asks for that.
        if facts and batch.plan.moves:
            self._cursors.move(connection, batch.plan.moves, batch.handled, batch.parked)

    def _call(self, batch: _Batch, facts: list[KeyFact]) -> None:
        started = time.monotonic()
        call_undivided(self.handler, self._chunk(*facts))
        batch.handler_seconds += time.monotonic() - started

    def _chunk(self, *facts: KeyFact) -> Chunk:
        return Chunk(self.handler.stream, [row for fact in facts for row in fact.rows], self._streams_using)

    def _park(self, batch: _Batch, fact: KeyFact, error: Exception, attempts: int) -> None:
        (whole,) = self._chunk(fact).facts
        park(self.handler, whole, error, attempts, (fact.part, fact.key))
        batch.parked[fact.part] += 1
        if attempts:
            log.error(
                "reader.fact_parked", reader=self.handler.reader, stream=self.handler.stream, token=fact.token, key=fact.key,
                attempts=attempts, error=error_words(error),
            )  # fmt: skip

    def _pace(self, batch: _Batch, seconds: float) -> None:
        limit = BATCH_SECONDS + seconds - batch.handler_seconds
        if batch.handler_seconds > limit:
            self._most = max(1, self._most // 2)
        elif len(batch.plan.facts) == self._most and batch.handler_seconds < limit / 2:
            self._most = min(self._most * 2, MOST_FACTS, self.handler.chunk_rows)

    # --- failures -------------------------------------------------------------------------------------------------

    def _attempt(self, batch: _Batch, facts: list[KeyFact]) -> None:
        """Handles one fact. If that fails, stores it in the same transaction: nobody else can take the part in between.

        After the last attempt the fact is parked. Rows of the fact that have other keys are handled then, if they can be.
        """
        ((_, number),) = batch.plan.facts
        attempts = 1 + next(part.attempts for part in batch.parts if part.number == number)
        is_last = attempts >= (self.handler.attempts or 0)
        for group in [[fact] for fact in facts] if is_last else [facts]:
            try:
                with transaction.atomic(using=self._using):
                    self._call(batch, group)
                    if is_last:
                        connections[self._using].check_constraints()  # the deferred ones, too
            except Exception as error:
                if not works(self._using):  # its savepoint is gone, too
                    raise
                if not is_last:
                    with connections[self._using].cursor() as cursor:
                        self._store_failure(cursor, batch, error)
                    return
                self._park(batch, group[0], error, attempts)
            else:
                batch.handled.update(fact.part for fact in group)

    def _park_after_all(self, batch: _Batch, part: Part, error: Exception) -> bool:
        """Parks the fact whose last attempt took its transaction or session along. Returns false if another process was first."""
        connection, (facts, batch.parked) = connections[self._using], (batch.facts, Counter())
        with transaction.atomic(using=self._using):
            held = self._cursors.reserve(connection, [part.number], 1, apart=part.apart_upto is not None)
            if [reserved.position for reserved in held] != [part.position]:
                return False
            for fact in facts:
                self._park(batch, fact, error, part.attempts + 1)
            self._cursors.move(connection, batch.plan.moves, {}, batch.parked)
        self.facts_parked += batch.parked.total()
        return True

    def _store_failure(self, cursor: Any, batch: _Batch, error: Exception) -> None:
        """Stores when to try a fact again, or that facts on which the handler failed together are handled one by one."""
        handler, facts = self.handler, batch.plan.facts
        batch.failed = True
        if len(facts) != 1:
            self._cursors.handle_apart(cursor, batch.parts, {part: token for token, part in facts})
            return
        ((token, number),) = facts
        (part,) = (part for part in batch.parts if part.number == number)
        log.warning(
            "reader.fact_failed", reader=handler.reader, stream=handler.stream, token=token, attempt=part.attempts + 1,
            error=error_words(error),
        )  # fmt: skip
        if part.attempts + 1 >= (handler.attempts or 0) and self._park_after_all(batch, part, error):
            return
        pause_seconds = min(handler.retry_seconds * 2 ** min(part.attempts, 20), LONGEST_RETRY_SECONDS)
        self._cursors.failed(cursor, part, token, pause_seconds)
