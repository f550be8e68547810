"""Asking something that may hang, such as a database behind a dead network, and getting an answer in time whatever it does.

The question is asked in a thread. Whoever asks while it is under way shares its answer, so however many ask, one thread waits;
the database connections that it opened are closed when it is through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from django.db import connections

__all__ = ["Deadline", "NoAnswer"]

T = TypeVar("T")


class NoAnswer(TimeoutError):
    """It has not answered in time; ``seconds``: for how long it has been asked by now."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer for {seconds:.1f} s")
        self.seconds = seconds


class Deadline(Generic[T]):
    """A question and how long its answer may take."""

    def __init__(self, work: Callable[[], T], seconds: float, name: str) -> None:
        self._work = work
        self._seconds = seconds
        self._name = name
        self._lock = threading.Lock()
        self._asked: Future[T] | None = None
        self._asked_at = 0.0

    def ask(self) -> T:
        """The answer, or what the question raised. Raises ``NoAnswer``."""
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked, self._asked_at = Future(), time.monotonic()
                threading.Thread(target=self._answer, args=(self._asked,), name=self._name, daemon=True).start()
            asked, since = self._asked, self._asked_at
        try:
            return asked.result(self._seconds)
        except TimeoutError as error:
            if asked.done():
                raise  # the question's own
            raise NoAnswer(time.monotonic() - since) from error

    def _answer(self, asked: Future[T]) -> None:
        try:
            answer = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever asked raises it
            connections.close_all()
            asked.set_exception(error)
        else:
            connections.close_all()
            asked.set_result(answer)
