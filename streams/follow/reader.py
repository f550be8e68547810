"""Runs a named reader: holds its name, calls its handlers with the facts of their streams, and survives lost connections.

Notifications wake the reader, and it reads facts from the tables. Facts of one stream are handled one chunk after
another. Different streams are handled in parallel, in threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from django.db import connections

from streams.conf import stream_settings
from streams.db import driver, testcase
from streams.errors import BadHandler, InTransaction, ReaderFenced
from streams.follow.asked_retries import AskedRetries
from streams.follow.handlers import Begin, Handler, handlers_of
from streams.follow.lease import ReaderLock
from streams.follow.parts_loop import PartsLoop
from streams.follow.stored_cursors import Owner
from streams.follow.table_loop import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, HandlerLoop
from streams.reading.looker import look_now
from streams.reading.position_notifications import PositionListener
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)


class Reader:
    """A named reader. Each object can be run once.

    If ``handlers`` is None, uses the handlers that were declared for the reader's name. Calls ``positioned`` each time
    that the name is held and every handler has a stored cursor: a reader of one handler has then handled no fact. Raises
    ``InTransaction`` inside of a ``TestCase``.
    """

    def __init__(
        self,
        name: str,
        handlers: Sequence[Handler] | None = None,
        positioned: Callable[[Reader], None] = lambda reader: None,
    ) -> None:
        self.name = name
        self._on_positioned = positioned
        self._handlers = list(handlers) if handlers is not None else handlers_of(name)
        for handler in self._handlers:
            handler.check_stream()
        self._using = self._one_database({handler.streams_database for handler in self._handlers}, "read streams of")
        effects = {handler.effects_database for handler in self._handlers}
        self._effects_using = self._one_database(effects, "have their effects in")
        if testcase.is_in_test(connections[self._using]):
            raise InTransaction(
                f"Reader {name!r} would get nothing that this TestCase appends: nothing is committed in it, and a reader has "
                f'connections of its own. Use testing.handled("{name}"), or TransactionTestCase.'
            )
        #: Whether other processes may run the reader, too.
        self._shared = any(handler.by for handler in self._handlers)
        if self._shared and not all(handler.by for handler in self._handlers):
            raise BadHandler(
                f"Some handlers of reader {name!r} have by=, so several processes may run them, and others have not. Give those "
                f"of each kind a reader of their own."
            )
        self._stopping = threading.Event()
        self._database_lost = Condition(log, "reader.database_lost", "reader.database_back", reader=name)
        self._round_over = threading.Event()
        self._loops: list[HandlerLoop] = []
        self._counts = [0, 0]

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Follows the streams and calls the handlers until ``stop`` is called.

        Raises ``ReaderNameTaken`` if another process already runs the reader, and ``ReaderFenced`` if another process
        takes the reader over later. Raises ``HandlerFailed`` if a handler fails in its last attempt. Raises
        ``ResyncNeeded`` if facts were trimmed that the reader has not read. Raises ``EpochChanged`` if the database was
        restored without the handlers' effects.
        """
        self._run(until_caught_up=False)

    def catch_up(self) -> int:
        """Handles all facts that exist now, and then returns the number of handled facts. Raises the same errors as ``run``."""
        self._run(until_caught_up=True)
        return self.facts_handled

    def stop(self) -> None:
        """Ends ``run`` after the current chunk. May be called from any thread or from a signal handler."""
        self._stopping.set()
        self._round_over.set()
        for loop in self._loops:
            loop.wake()

    @property
    def facts_handled(self) -> int:
        return self._counts[0] + sum(loop.facts_handled for loop in self._loops)

    @property
    def facts_parked(self) -> int:
        return self._counts[1] + sum(loop.facts_parked for loop in self._loops)

    def positions(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the positions up to which the reader has handled facts, as ``{stream: {writer: position}}``."""
        return {loop.handler.stream: loop.positions() for loop in self._loops}

    def started_at_now(self) -> list[str]:
        """Returns the streams on which the reader had no cursor and began at the present end. It skips their older facts."""
        return [loop.handler.stream for loop in self._loops if loop.is_new and loop.handler.begin is Begin.NOW]

    def _one_database(self, found: set[str], purpose: str) -> str:
        # The reader has a lock in one database.
        if len(found) > 1:
            raise BadHandler(
                f"The handlers of reader {self.name!r} {purpose} different databases ({', '.join(sorted(found))}): give those "
                f"of each a reader of their own."
            )
        return found.pop() if found else stream_settings().database

    # --- rounds: one for each time that the name is held ----------------------------------------------------------

    def _run(self, *, until_caught_up: bool) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                if self._hold_and_follow(until_caught_up=until_caught_up):
                    return
            except driver.missing:
                raise
            except driver.DatabaseError as error:
                self._database_lost.begins(driver.explain(error))
            if time.monotonic() - started > LONGEST_RETRY_SECONDS:
                retry_seconds = FIRST_RETRY_SECONDS
            self._stopping.wait(retry_seconds)
            retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    def _hold_and_follow(self, *, until_caught_up: bool) -> bool:
        lock = ReaderLock(
            self.name,
            self._effects_using,
            self.positions,
            lost=self._end_round,
            shown_in=self._using,
            handled={handler.stream for handler in self._handlers},
        )
        lock.shared = self._shared
        owner = lock.acquire()
        self._database_lost.ends()
        log.info("reader.runs", reader=self.name, lease=owner.lease)
        try:
            return self._follow(owner, lock, until_caught_up=until_caught_up)
        finally:
            lock.release(self._errors())

    def _errors(self) -> dict[str, BaseException]:
        # ``ReaderFenced`` only means that another process runs the reader now.
        found = {loop.handler.stream: loop.error for loop in self._loops if loop.error is not None}
        return {stream: error for stream, error in found.items() if not isinstance(error, ReaderFenced)}

    def _follow(self, owner: Owner, lock: ReaderLock, *, until_caught_up: bool) -> bool:
        # What is committed by now is before ``Begin.NOW``, and ``catch_up`` handles it, though nobody may have looked since.
        look_now(self._using, even_if_led=True)
        self._begin_round(owner, lock, until_caught_up=until_caught_up)
        # Processes that share a reader would all look at each hint, and find that one of them has it.
        read_ahead = [not self._shared and handler.may_read_ahead for handler in self._handlers]
        listener = PositionListener(
            self._wake, self._using, f"reader {self.name}", hints=any(read_ahead), follows=not all(read_ahead)
        )
        listener.start()
        try:
            threads = [threading.Thread(target=loop.run, args=(self._loop_ended,)) for loop in self._loops]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._end_round()
            listener.stop()
        errors = [loop.error for loop in self._loops if loop.error is not None]
        # The lock was lost together with its connection. Another process may have taken the name and fenced our loops. In
        # this case the next attempt to lock the name raises ReaderNameTaken.
        if lock.lost.is_set() and all(isinstance(error, ReaderFenced) for error in errors):
            return self._stopping.is_set()
        if errors:
            raise errors[0]
        return True

    def _begin_round(self, owner: Owner, lock: ReaderLock, *, until_caught_up: bool) -> None:
        self._counts = [self.facts_handled, self.facts_parked]
        self._round_over = threading.Event()
        if self._stopping.is_set():
            self._round_over.set()
        self._loops = [self._loop(handler, owner, lock, until_caught_up=until_caught_up) for handler in self._handlers]

    def _loop(self, handler: Handler, owner: Owner, lock: ReaderLock, *, until_caught_up: bool) -> HandlerLoop:
        retries = AskedRetries(handler, owner, lock.waiting_request)
        kind = PartsLoop if handler.by else HandlerLoop
        return kind(handler, owner, self._round_over, self._positioned, retries, until_caught_up=until_caught_up)

    def _end_round(self) -> None:
        self._round_over.set()
        for loop in self._loops:
            loop.wake()

    def _positioned(self) -> None:
        if self._loops and all(loop.cursor is not None for loop in self._loops):
            self._on_positioned(self)

    def _loop_ended(self) -> None:
        # An error on one stream stops the whole reader.
        if any(loop.error is not None for loop in self._loops):
            self._end_round()

    def _wake(self, streams: list[str]) -> None:
        for loop in self._loops:
            if not streams or loop.handler.stream in streams:  # an empty list: notifications may have been lost
                loop.wake()
