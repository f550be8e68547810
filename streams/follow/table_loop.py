"""The handler loop of one stream of a reader, which runs in a thread of its own and reads facts from the table.

While the handler works on a chunk, the next chunk is read. Notifications wake the loop. If a notification is lost,
facts are delayed by one heartbeat interval at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from django.db import connections, transaction

from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.follow.asked_retries import AskedRetries
from streams.follow.chunks import Chunk
from streams.follow.delivery import Delivery, Stopped
from streams.follow.handler_transaction import ConnectionLost, as_connection_lost
from streams.follow.handlers import Handler
from streams.follow.lag_histogram import DelaySamples
from streams.follow.part_cursors import PartCursors
from streams.follow.stored_cursors import CursorMoved, Owner, adopt_epoch, begin_cursor, read_cursor
from streams.follow.table_source import Batch, TableSource
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 5.0


class HandlerLoop:
    """Runs one handler under one lease until ``stop`` is set. If ``until_caught_up`` is true, ends when all facts are handled.

    Between two chunks the loop retries dead letters if an operator has asked for it (``retries``).
    """

    def __init__(
        self,
        handler: Handler,
        owner: Owner,
        stop: threading.Event,
        positioned: Callable[[], None],
        retries: AskedRetries,
        *,
        until_caught_up: bool = False,
    ) -> None:
        self.handler = handler
        self.error: BaseException | None = None
        self.cursor: VectorToken | None = None
        self.is_new = False
        """True if the reader had no stored cursor on the stream, so that this loop began one."""
        self.facts_handled = self.facts_parked = 0
        self._owner = owner
        self._stop = stop
        self._positioned = positioned
        self._retries = retries
        self._using = handler.effects_database
        self._streams_using = handler.streams_database
        self._source = TableSource(handler, self._streams_using)
        self._database_lost = Condition(
            log, "reader.database_lost", "reader.database_back", reader=handler.reader, stream=handler.stream
        )
        self._delays = DelaySamples(handler.reader, handler.stream, self._streams_using)
        self._until_caught_up = until_caught_up
        self._news = threading.Event()
        self._store_due = 0.0
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix=f"fetch-{handler.stream}")

    def wake(self) -> None:
        """Makes the loop check at once if there are new facts or ``stop`` is set. May be called from any thread."""
        self._news.set()

    def positions(self) -> dict[str, int]:
        """Returns the positions up to which the loop has handled facts, as ``{writer: position}``."""
        cursor = self.cursor
        return {} if cursor is None else {writer: cursor.position_of(writer) for writer in self._source.writers}

    def run(self, ended: Callable[[], None] = lambda: None) -> None:
        """Runs the loop in the calling thread, and then calls ``ended``. If an error ends the loop, stores it in ``error``."""
        try:
            self._run()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the reader raises it in its own thread
            self.error = error
        finally:
            self._ahead.shutdown(wait=True, cancel_futures=True)
            self._source.close()
            driver.end_sessions()
            ended()

    def _run(self) -> None:
        # After each loss of the database connection, continues from the stored cursor.
        retry_seconds = FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            try:
                delivery = self._open_delivery()
                self._positioned()
                self._database_lost.ends()
                retry_seconds = FIRST_RETRY_SECONDS
                self._follow(delivery)
                return
            except CursorMoved:
                log.warning("reader.cursor_moved", reader=self.handler.reader, stream=self.handler.stream)
            except driver.missing:
                raise
            except (ConnectionLost, driver.DatabaseError) as error:
                self._database_lost.begins(driver.explain(error))
                self._source.close()
                driver.end_sessions()
                if self._stop.wait(retry_seconds):
                    return
                retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    def _open_delivery(self) -> Delivery:
        handler = self.handler
        first, epoch = self._source.first_token(), self._source.epoch()
        with (
            as_connection_lost(),
            transaction.atomic(using=self._using, durable=True),
            connections[self._using].cursor() as cursor,
        ):
            self._unite(cursor)
            kept = read_cursor(cursor, handler.reader, handler.stream)
            if kept is None:
                self.is_new = True
                kept = begin_cursor(cursor, self._owner, handler.stream, first, epoch)
            self._check_epoch(cursor, kept[1], epoch)
            self._source.check_given_out(kept[0])
        self.cursor = kept[0]
        return Delivery(handler, self._owner, kept[0], self._stop.wait, self._source.session_lock)

    def _unite(self, cursor: Any) -> None:
        PartCursors(self.handler.reader, self.handler.stream, "").unite(cursor)

    def _check_epoch(self, cursor: Any, kept: str, now: str) -> None:
        """Raises ``EpochChanged`` if the database was restored but the handler's effects were not.

        ``kept`` is the epoch of the stored cursor, and ``now`` is the present epoch. An ``atomic`` handler may have its
        effects in the database of the facts. Then the effects were restored together with the facts and the cursor, and
        the new epoch is stored in the cursor.
        """
        if kept == now or not now:
            return
        if not self.handler.atomic or self._using != self._streams_using:
            self._source.check_epoch(kept)
        log.info("reader.new_epoch", reader=self.handler.reader, stream=self.handler.stream, was=kept, epoch=now)
        adopt_epoch(cursor, self.handler.reader, self.handler.stream, now)

    def _follow(self, delivery: Delivery) -> None:
        ahead: Future[Batch] | None = None
        batch = self._source.next(delivery.stored)
        try:
            while not self._stop.is_set():
                if not batch.is_last:
                    ahead = self._ahead.submit(self._source.next, batch.cursor)  # read while this batch is handled
                self._deliver(delivery, batch)
                with as_connection_lost():
                    has_more = self._retries.go_on(self._stop)
                if ahead is not None:
                    batch, ahead = ahead.result(), None
                    continue
                if self._until_caught_up:
                    if not batch.rows and not has_more:
                        break
                elif not has_more:
                    self._wait_for_news(delivery, batch.cursor)
                batch = self._source.next(batch.cursor)
            if self.cursor is not None:
                delivery.store(self.cursor)
            with as_connection_lost():
                self._retries.leave()
        finally:
            if ahead is not None:
                ahead.cancel()
                wait([ahead])

    def _deliver(self, delivery: Delivery, batch: Batch) -> None:
        if batch.rows:

            def after(cursor: VectorToken, part: Chunk) -> VectorToken:
                return cursor.after_partial_read(batch.target, part.rows[-1].token)

            try:
                delivery.deliver(Chunk(self.handler.stream, batch.rows, self._streams_using), after, batch.cursor)
                self._delays.handled(batch.rows[-1].token)
            finally:
                handled, parked = delivery.pop_counts()
                self.facts_handled += handled
                self.facts_parked += parked
        self.cursor = batch.cursor

    def _wait_for_news(self, delivery: Delivery, cursor: VectorToken) -> None:
        """Waits for a notification, for at most one heartbeat interval. Then stores ``cursor``.

        ``cursor`` may lie above the stored cursor, because ranges without facts were read. This method stores a cursor
        at most once per heartbeat interval.
        """
        beat_seconds = stream_settings().heartbeat_seconds
        self._news.wait(beat_seconds)
        # The event is cleared before the caller reads the positions, and nowhere else. In the other order, the positions are
        # read, a fact commits, its notification sets the event, the event is cleared, and the fact waits for the next heartbeat.
        self._news.clear()
        if driver.has_ended(connections[self._using]):  # which is no failure of the next fact
            driver.end_sessions()
        if time.monotonic() >= self._store_due:
            delivery.store(cursor)
            self._store_due = time.monotonic() + beat_seconds
