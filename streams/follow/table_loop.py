"""One stream of a reader: its life in a thread of its own, and following the table.

While a chunk is handled the next one is fetched. News are pokes; a lost one costs a heartbeat, never a fact.
``wire_lane`` is told of facts by a replication server instead.
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
from streams.follow.chunks import Chunk
from streams.follow.cursors import CursorMoved, Owner, adopt_epoch, begin_cursor, read_cursor
from streams.follow.delivery import ConnectionLost, Delivery, Stopped
from streams.follow.handlers import Handler
from streams.follow.lag_histogram import DelaySamples
from streams.follow.table_source import Batch, TableSource
from streams.runtime.logs import Condition, get_logger

__all__ = ["Lane", "TableLane"]

log = get_logger(__name__)
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 5.0
After = Callable[[VectorToken, Chunk], VectorToken]


class Lane:
    """Runs one handler under one lease until it is told to stop. A subclass says where the facts come from."""

    def __init__(self, handler: Handler, owner: Owner, stop: threading.Event, began: Callable[[], None]) -> None:
        self.handler = handler
        self.error: BaseException | None = None
        self.cursor: VectorToken | None = None
        self.facts_handled = self.facts_parked = 0
        self._owner = owner
        self._stop = stop
        self._began = began
        self._using = handler.effects_database
        self._streams_using = stream_settings().database
        self._source = TableSource(handler, self._streams_using)
        self._database_lost = Condition(
            log, "reader.database_lost", "reader.database_back", reader=handler.reader, stream=handler.stream
        )
        self._delays = DelaySamples(handler.reader, handler.stream, self._streams_using)

    def wake(self) -> None:
        """Positions may have moved, or the reader is to stop."""
        raise NotImplementedError

    def follow(self, delivery: Delivery) -> None:
        """Deliver facts from the stored cursor on until told to stop; then the cursor is stored where it is."""
        raise NotImplementedError

    def positions(self) -> dict[str, int]:
        """Up to where facts of each writer were handled."""
        cursor = self.cursor
        return {} if cursor is None else {writer: cursor.position_of(writer) for writer in self._source.writers}

    def run(self, ended: Callable[[], None] = lambda: None) -> None:
        """The thread: ends when told to, when all is done, or with ``error``; then calls ``ended``."""
        try:
            self._run()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the reader raises it in its own thread
            self.error = error
        finally:
            self.close()
            ended()

    def close(self) -> None:
        """Give everything back; called in the thread."""
        self._source.close()
        connections.close_all()

    def _run(self) -> None:
        """Begin again from the stored cursor after every loss of the database."""
        retry_seconds = FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            try:
                delivery = self._begin()
                self._began()
                self._database_lost.ends()
                retry_seconds = FIRST_RETRY_SECONDS
                self.follow(delivery)
                return
            except CursorMoved:
                log.warning("reader.cursor_moved", reader=self.handler.reader, stream=self.handler.stream)
            except driver.missing:
                raise
            except (ConnectionLost, driver.DatabaseError) as error:
                self._database_lost.begins(driver.explain(error))
                self._source.close()
                connections.close_all()
                if self._pause(retry_seconds):
                    return
                retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    def _begin(self) -> Delivery:
        """The stored cursor, or a first one."""
        handler = self.handler
        first, epoch = self._source.begin(), self._source.epoch()
        try:
            with transaction.atomic(using=self._using, durable=True), connections[self._using].cursor() as cursor:
                kept = read_cursor(cursor, handler.reader, handler.stream)
                if kept is None:
                    kept = begin_cursor(cursor, self._owner, handler.stream, first, epoch)
                self._check_epoch(cursor, kept[1], epoch)
        except Exception as error:
            if isinstance(error.__cause__, driver.DatabaseError):
                raise ConnectionLost(str(error)) from error
            raise
        self.cursor = kept[0]
        return Delivery(handler, self._owner, kept[0], self._pause, self._using)

    def _check_epoch(self, cursor: Any, kept: str, now: str) -> None:
        """Facts, cursor and effects in one database were restored together; effects elsewhere were not."""
        if kept == now or not now:
            return
        if not self.handler.atomic or self._using != self._streams_using:
            self._source.check_epoch(kept)
        log.info("reader.new_epoch", reader=self.handler.reader, stream=self.handler.stream, was=kept, epoch=now)
        adopt_epoch(cursor, self.handler.reader, self.handler.stream, now)

    def _deliver(self, delivery: Delivery, chunk: Chunk, after: After, upto: VectorToken) -> None:
        try:
            delivery.deliver(chunk, after, upto)
            self._delays.handled(chunk.rows[-1].token)
        finally:
            handled, parked = delivery.take_counts()
            self.facts_handled += handled
            self.facts_parked += parked

    def _pause(self, seconds: float) -> bool:
        """Wait, but not longer than until somebody says stop; whether somebody did."""
        return self._stop.wait(seconds)


class TableLane(Lane):
    """Facts come from the table; ends also when it has caught up, if that is all that is wanted."""

    def __init__(
        self,
        handler: Handler,
        owner: Owner,
        stop: threading.Event,
        began: Callable[[], None],
        *,
        until_caught_up: bool = False,
    ) -> None:
        super().__init__(handler, owner, stop, began)
        self._until_caught_up = until_caught_up
        self._news = threading.Event()
        self._store_due = 0.0
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix=f"fetch-{handler.stream}")

    def wake(self) -> None:
        self._news.set()

    def close(self) -> None:
        self._ahead.shutdown(wait=True, cancel_futures=True)
        super().close()

    def follow(self, delivery: Delivery) -> None:
        fetch = self._fetch(delivery.stored)
        try:
            while not self._stop.is_set():
                batch = fetch.result()
                if not batch.is_last:
                    fetch = self._fetch(batch.cursor)  # while this one is handled
                self._take(delivery, batch)
                if not batch.is_last:
                    continue
                if not batch.rows and self._until_caught_up:
                    break
                if not batch.rows:
                    self._wait_for_news(delivery, batch.cursor)
                fetch = self._fetch(batch.cursor)
            if self.cursor is not None:
                delivery.store(self.cursor)
        finally:
            fetch.cancel()
            wait([fetch])

    def _fetch(self, after: VectorToken) -> Future[Batch]:
        return self._ahead.submit(self._source.next, after)

    def _take(self, delivery: Delivery, batch: Batch) -> None:
        if batch.rows:
            chunk = Chunk(self.handler.stream, batch.rows, self._streams_using)

            def after(cursor: VectorToken, part: Chunk) -> VectorToken:
                return cursor.after_partial_read(batch.target, part.rows[-1].token)

            self._deliver(delivery, chunk, after, batch.cursor)
        self.cursor = batch.cursor

    def _wait_for_news(self, delivery: Delivery, cursor: VectorToken) -> None:
        """Until a poke, or a heartbeat. Where no facts were, the cursor is stored once a heartbeat and no oftener."""
        beat_seconds = stream_settings().heartbeat_seconds
        self._news.wait(beat_seconds)
        self._news.clear()  # before the positions are read, so that a poke that comes meanwhile is seen
        if time.monotonic() >= self._store_due:
            delivery.store(cursor)
            self._store_due = time.monotonic() + beat_seconds
