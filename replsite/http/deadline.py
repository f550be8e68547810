"""Limits how long callers wait for a call that may hang, such as a query to a database behind a dead network.

The call runs in a thread. Callers that arrive meanwhile share its result, so a `Deadline` never has more than one
thread. When the call ends, the database connections that it opened are closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from django.db import connections

from streams.runtime.amounts import duration

T = TypeVar("T")


class NoAnswer(TimeoutError):
    """The error of a call that did not return in time. ``seconds`` is the time for which the call has run."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer for {duration(seconds)}")
        self.seconds = seconds


class Deadline(Generic[T]):
    """A call for which callers wait only up to a time limit."""

    def __init__(self, work: Callable[[], T], seconds: float, name: str) -> None:
        self._work = work
        self._seconds = seconds
        self._name = name
        self._lock = threading.Lock()
        self._asked: Future[T] | None = None
        self._asked_at = 0.0

    def ask(self) -> T:
        """Returns the result, or raises the call's own error.

        Raises ``NoAnswer`` after the time limit. The call then goes on in its thread.
        """
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked, self._asked_at = Future(), time.monotonic()
                threading.Thread(target=self._answer, args=(self._asked,), name=self._name, daemon=True).start()
            asked, since = self._asked, self._asked_at
        try:
            return asked.result(self._seconds)
        except TimeoutError as error:
            # The call itself may raise TimeoutError. Then its future is done, and the error is its result.
            if asked.done():
                raise
            raise NoAnswer(time.monotonic() - since) from error

    def _answer(self, asked: Future[T]) -> None:
        try:
            answer = self._work()
        except BaseException as error:  # noqa: BLE001 - ``ask`` raises it in the callers' threads
            # The connections are closed before the result is set. The next call may start right after that, and would
            # open its own connections beside these.
            connections.close_all()
            asked.set_exception(error)
        else:
            connections.close_all()
            asked.set_result(answer)
