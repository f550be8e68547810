"""The handler loop of a stream that several processes share by key (``by=``). Each process has such a loop.

A transaction takes parts by row locks, reads their next facts, calls the handler with each, and moves the parts' cursors. So
a fact's effects and its part's cursor commit together, and nobody else has the part meanwhile. What a process knows besides,
its window, saves work only. If it is out of date, the cursors that were taken say so.

If the handler fails on facts together, their parts' next facts are handled one by one. If it fails on a single fact, the part
waits for the next attempt. After the last attempt the fact is parked. Meanwhile all other parts go on.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, transaction

from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import HandlerFailed
from streams.follow.chunks import Chunk
from streams.follow.dead_letters import check_not_undone, park, stopped_keys
from streams.follow.delivery import LONGEST_RETRY_SECONDS, ConnectionLost, Delivery, commit_once
from streams.follow.handlers import OnFailure
from streams.follow.part_cursors import PartCursors, processes
from streams.follow.part_plan import PARTS, Part, Plan, Window, share_of
from streams.follow.part_source import KeyFact, PartSource
from streams.follow.stored_cursors import CursorMoved
from streams.follow.table_loop import HandlerLoop, as_connection_lost
from streams.runtime.logs import get_logger

log = get_logger(__name__)
#: A transaction has about as many facts as are handled in this time, so that parts are soon free for others.
BATCH_SECONDS = 0.05
MOST_FACTS = 1_000
#: What is known of facts that others handle, or that wait behind a failed one, needs about 100 bytes a fact.
MOST_WINDOW = 100_000
#: How often a process counts the others, and passes parts without facts.
TICK_SECONDS = 0.5
#: The shortest and the longest time to wait for parts that others have, or that wait for their next attempt.
BUSY_SECONDS, MOST_BUSY_SECONDS = 0.01, 0.2


@dataclass(slots=True)
class _Batch:
    """The facts of one transaction. ``current`` is the fact with which the handler was called last."""

    parts: list[Part] = field(default_factory=list)
    plan: Plan = field(default_factory=lambda: Plan((), {}))
    facts: list[KeyFact] = field(default_factory=list)
    is_read: bool = False
    current: KeyFact | None = None
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
        self._share, self._most = share_of(1), 1
        self._tick_due = 0.0
        self._busy_seconds = BUSY_SECONDS

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
        while not self._stop.is_set():
            parts = self._read_parts()
            if time.monotonic() >= self._tick_due:
                self._tick(parts)
            with as_connection_lost():
                has_more = self._retries.go_on(self._stop)
            if self._work(parts) or self._widen() or has_more:
                continue
            if self._until_caught_up and not len(self._window):
                break
            self._wait(parts)
        self._tick(self._read_parts())
        with as_connection_lost():
            self._retries.leave()

    def _read_parts(self) -> list[Part]:
        with as_connection_lost(), connections[self._using].cursor() as cursor:
            parts = self._cursors.all(cursor)
        if len(parts) < PARTS:
            raise CursorMoved
        self._pass_over(parts)
        self.cursor = VectorToken(parts[0].position)
        return parts

    def _pass_over(self, parts: list[Part]) -> None:
        if not all(self._window.pass_over(part.number, part.position) for part in parts):
            raise CursorMoved

    def _tick(self, parts: list[Part]) -> None:
        with as_connection_lost(), connections[self._using].cursor() as cursor:
            self._cursors.pass_empty(cursor, self._window.passable(parts), self._window.upto)
            self._cursors.store(cursor)
            self._share = share_of(processes(cursor, self._key))
        self._tick_due = time.monotonic() + TICK_SECONDS

    def _wait(self, parts: list[Part]) -> None:
        if len(self._window):
            seconds = self._busy_seconds
            self._busy_seconds = min(self._busy_seconds * 2, MOST_BUSY_SECONDS)
        elif self._window.passable(parts):
            seconds = max(0.0, self._tick_due - time.monotonic())
        else:
            seconds = stream_settings().heartbeat_seconds
        self._news.wait(seconds)
        self._news.clear()  # before the positions are read, as in ``_wait_for_news``

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

    def _work(self, parts: list[Part]) -> bool:
        """Handles facts in one transaction, if there are some that no other process has. Returns false otherwise."""
        for apart in (True, False):
            if (ready := self._window.ready(parts, apart=apart)) and self._take(ready, apart=apart):
                return True
        return False

    def _take(self, ready: list[int], *, apart: bool) -> bool:
        most = 1 if apart else self._most
        batch, began = _Batch(), time.monotonic()

        def work() -> None:
            with connections[self._using].cursor() as cursor:
                batch.parts = self._cursors.take(cursor, ready, min(self._share, most), apart=apart)
            self._pass_over(batch.parts)
            self._handle(batch, most, {})

        if (error := self._commit(batch, work)) is not None:
            self._failed(batch, error)
        elif not apart:
            self._pace(len(batch.plan.facts), time.monotonic() - began)
        if batch.parts:
            self._busy_seconds = BUSY_SECONDS
        return bool(batch.parts)

    def _commit(self, batch: _Batch, work: Any) -> Exception | None:
        """Calls ``work`` in a transaction. Returns the handler's error, or that of the commit. Raises all others."""

        def committed() -> None:
            self.facts_handled += batch.handled.total()
            self.facts_parked += batch.parked.total()

        try:
            commit_once(self.handler, self._using, work, committed)
        except (ConnectionLost, CursorMoved):
            raise
        except Exception as error:
            if batch.is_read:
                return error
            with as_connection_lost():
                raise
        if batch.handled:
            self._delays.handled(batch.plan.facts[-1][0])
        return None

    def _handle(self, batch: _Batch, most: int, given_up: dict[str, Exception]) -> None:
        """Handles the next facts of the parts that were taken, and moves the parts.

        ``given_up`` are the keys of facts to park, with the handler's errors.
        """
        handler = self.handler
        batch.plan = self._window.plan(batch.parts, most)
        if batch.plan.facts:
            batch.facts = self._parts_source.facts(batch.plan.facts)
        # Asked after the parts were taken: who parks a fact of a key, or retries it, has its part.
        stops = handler.on_failure is OnFailure.STOP
        stopped = stopped_keys(handler, {fact.key for fact in batch.facts}) if stops and batch.facts else set()
        batch.is_read = True
        for fact in batch.facts:
            batch.current = fact
            chunk = Chunk(handler.stream, fact.rows, self._streams_using)
            error, attempts = given_up.get(fact.key), handler.attempts or 0
            if fact.key in stopped:
                error, attempts = HandlerFailed(f"It waits: an earlier fact of its key {fact.key!r} is parked."), 0
            if error is None:
                handler.call(chunk)
                check_not_undone(self._using)
            else:
                park(handler, chunk.facts[0], error, attempts, (fact.part, fact.key))
            (batch.handled if error is None else batch.parked)[fact.part] += 1
        batch.current = None
        if batch.plan.moves:
            with connections[self._using].cursor() as cursor:
                self._cursors.move(cursor, batch.plan.moves, batch.handled, batch.parked)

    def _pace(self, facts: int, seconds: float) -> None:
        if seconds > BATCH_SECONDS:
            self._most = max(1, self._most // 2)
        elif facts == self._most and seconds < BATCH_SECONDS / 2:
            self._most = min(self._most * 2, MOST_FACTS, self.handler.chunk_rows)

    # --- failures -------------------------------------------------------------------------------------------------

    def _failed(self, batch: _Batch, error: Exception) -> None:
        handler, facts = self.handler, batch.plan.facts
        if len(facts) != 1:
            with as_connection_lost(), connections[self._using].cursor() as cursor:
                self._cursors.handle_apart(cursor, batch.parts, {part: token for token, part in facts})
            return
        ((token, number),) = facts
        part = next(part for part in batch.parts if part.number == number)
        attempts = part.attempts + 1
        log.warning(
            "reader.fact_failed", reader=handler.reader, stream=handler.stream, token=token, attempt=attempts,
            error=str(error),
        )  # fmt: skip
        if attempts >= (handler.attempts or 0):
            self._give_up(part, batch, error)
            return
        pause_seconds = min(handler.retry_seconds * 2 ** min(attempts - 1, 20), LONGEST_RETRY_SECONDS)
        with as_connection_lost(), connections[self._using].cursor() as cursor:
            self._cursors.failed(cursor, part, token, pause_seconds)

    def _give_up(self, part: Part, failed: _Batch, error: Exception) -> None:
        """Parks the next fact of a part. Rows of the fact that have other keys are handled, or parked if they fail, too."""
        given_up: dict[str, Exception] = {}
        last: Exception | None = error
        while last is not None:
            keys = {fact.key for fact in failed.facts if failed.current in (None, fact)} - given_up.keys()
            if not keys:
                raise last  # it cannot be parked
            given_up |= dict.fromkeys(keys, last)
            failed = batch = _Batch()

            def work(batch: _Batch = batch, given_up: dict[str, Exception] = given_up) -> None:
                with connections[self._using].cursor() as cursor:
                    # Else another process has handled or parked the fact, or tries it now.
                    if self._cursors.take_again(cursor, part):
                        batch.parts = [part]
                self._handle(batch, 1, given_up)

            last = self._commit(batch, work)
        for key, reason in given_up.items() if failed.parked else ():
            log.error(
                "reader.fact_parked", reader=self.handler.reader, stream=self.handler.stream, key=key, error=str(reason)
            )
