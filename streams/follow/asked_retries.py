"""Retries dead letters in the process that runs their reader, when an operator has asked for it.

``ask_retry`` stores the request in the row of the reader's cursor. The reader's process reads the request when the
process takes the reader's name, and with each heartbeat. The handler loop of the stream retries the dead letters in the
loop's thread, each in a separate transaction, and stores the result. So the handlers run in the process that has their
code and settings. The process in which the operator asks needs neither code nor settings.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from django.db import connections

from streams.conf import stream_settings
from streams.errors import UnknownReader
from streams.follow.dead_letters import parked_facts, retry_one
from streams.follow.handlers import Handler, effects_database_of
from streams.follow.stored_cursors import Owner, RetryRequest, begin_retry, end_retry, put_back_retry
from streams.follow.stored_cursors import ask_retry as store_request
from streams.runtime.logs import get_logger

log = get_logger(__name__)
WaitingRequest = Callable[[str], RetryRequest | None]
"""Returns the retry request that waits for a stream's handler loop."""


def ask_retry(
    reader: str, stream: str | None = None, token: int | Sequence[int] | None = None, *, by: str
) -> list[str]:
    """Asks the reader's process to retry dead letters. Returns the names of the streams that have such dead letters.

    If ``stream`` or ``token`` is given, only the dead letters with this stream or token, or these tokens, are retried. Raises
    ``UnknownReader`` if the reader has no cursor on a stream with dead letters. If the reader does not run now, its
    next process gets the request.
    """
    with connections[effects_database_of(reader)].cursor() as cursor:
        streams = store_request(cursor, reader, stream, [token] if isinstance(token, int) else token, by)
    if not streams:
        raise UnknownReader(f"There is no cursor of reader {reader!r} on a stream with such dead letters.")
    return streams


class AskedRetries:
    """The retries of one handler's dead letters for operators. Used only by the thread that calls the handler."""

    def __init__(self, handler: Handler, owner: Owner, waiting: WaitingRequest) -> None:
        self._handler = handler
        self._owner = owner
        self._waiting = waiting
        self._request: RetryRequest | None = None
        """The request that is being carried out, or the last one."""
        self._is_open = False
        """True if the request has begun and its result is not stored yet."""
        self._left: deque[int] = deque()
        self._handled = self._failed = 0

    def go_on(self, stop: threading.Event) -> bool:
        """Retries dead letters for at most one heartbeat interval, if an operator has asked for it.

        Returns true if further dead letters wait for a retry. Then the caller must call this method again. If a
        database error ends the retry of a dead letter, the next call retries this dead letter again.
        """
        if not self._is_open and not self._start():
            return False
        ends = time.monotonic() + stream_settings().heartbeat_seconds
        while self._left and not stop.is_set() and time.monotonic() < ends:
            # The dead letter is removed from the queue after its attempt. In the other order: the attempt ends with a database
            # error, the next call goes on with the second dead letter, and the first one is not retried.
            done = retry_one(self._handler, self._left[0])
            self._left.popleft()
            self._handled, self._failed = self._handled + (done is True), self._failed + (done is False)
        if not self._left:
            self._end()
        return self._is_open and not stop.is_set()

    def leave(self) -> None:
        """Stores an unfinished retry request as waiting, so that the next process of the reader carries it out."""
        if self._is_open and self._request is not None:
            with connections[self._handler.effects_database].cursor() as cursor:
                put_back_retry(cursor, self._owner, self._request)

    def _start(self) -> bool:
        request = self._waiting(self._handler.stream)
        # The `ReaderLock` returns the same request until its next heartbeat, even if the request was carried out here
        # already.
        if request is None or request == self._request:
            return False
        found = parked_facts(self._handler.reader, self._handler.stream).using(self._handler.effects_database)
        if request.tokens is not None:
            found = found.filter(token__in=request.tokens)
        left = deque(found.values_list("pk", flat=True))
        # From here on the request counts as begun, before a handler is called: if a dead letter kills the process, the
        # next process does not begin the request again, and is not killed as well.
        with connections[self._handler.effects_database].cursor() as cursor:
            self._is_open = begin_retry(cursor, self._owner, request)
        self._request, self._left = request, left
        self._handled = self._failed = 0
        return self._is_open

    def _end(self) -> None:
        handler, request = self._handler, self._request
        if request is None:
            return
        left = parked_facts(handler.reader, handler.stream).using(handler.effects_database).count()
        with connections[handler.effects_database].cursor() as cursor:
            result = f"{self._handled} handled, {self._failed} failed again, {left} left"
            end_retry(cursor, self._owner, request, result)
        self._is_open = False
        log.info(
            "reader.retried", reader=handler.reader, stream=handler.stream, handled=self._handled, failed=self._failed
        )
