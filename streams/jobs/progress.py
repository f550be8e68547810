"""Reports the progress of a job: stage, rate and time left.

A report is written to the job's row and to an output stream, which is a terminal or a file. The work of a stage is done
in the caller's thread, or in Spark. A second thread calls a function at intervals that returns how much is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from django.db import connections

from streams.runtime.amounts import done_of, duration
from streams.runtime.logs import get_logger
from streams.runtime.text import inert_text

log = get_logger(__name__)
#: Seconds between two reports: for plain lines, and for a terminal, where one line is overwritten.
_PLAIN_SECONDS = 2.0
_TERMINAL_SECONDS = 0.2
Store = Callable[[str, int, "int | None", "float | None"], None]


class Progress:
    """A reporter of stages. It writes lines to ``stream``, and figures through ``store``.

    ``store`` is called with the stage's name, the amount done, the total and the rate per second. Total and rate may be
    None.
    """

    def __init__(self, stream: TextIO, store: Store) -> None:
        self._stream = stream
        self._store = store
        self._terminal = stream.isatty()

    def say(self, text: str) -> None:
        self._stream.write(f"{inert_text(text)}\n")
        self._stream.flush()

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str, done: Callable[[], int]) -> Iterator[None]:
        """Reports on a stage while the block runs. Reports once more at the end of the block, except after an error.

        ``done`` is called from another thread. ``total`` is None if the total is not known.
        """
        started = time.monotonic()
        ended = threading.Event()
        reporter = threading.Thread(target=self._report, args=(name, total, unit, done, ended), daemon=True)
        reporter.start()
        try:
            yield
        finally:
            # Wait for the reporter. Otherwise it could store an older figure after the last figure, which is stored
            # below.
            ended.set()
            reporter.join()
        reached, seconds = total if total is not None else done(), time.monotonic() - started
        self._store(name, reached, total, reached / seconds if seconds else None)
        self._show(describe(name, reached, total, unit, seconds), last=True)

    def _report(self, name: str, total: int | None, unit: str, done: Callable[[], int], ended: threading.Event) -> None:
        started = time.monotonic()
        while not ended.wait(_TERMINAL_SECONDS if self._terminal else _PLAIN_SECONDS):
            try:
                reached, seconds = done(), time.monotonic() - started
                self._store(name, reached, total, reached / seconds)
                self._show(describe(name, reached, total, unit, seconds), last=False)
            except Exception as error:  # noqa: BLE001 - an error of the report must not end the work
                log.warning("progress.failed", stage=name, error=str(error))
        connections.close_all()  # connections of Django belong to a thread; these are the reporter's

    def _show(self, text: str, *, last: bool) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{inert_text(text)}" + ("\n" if last else ""))
            self._stream.flush()
        else:
            self.say(text)


def describe(name: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """Returns a line with the amount done and the rate. If ``total`` is known, adds the total and the remaining seconds."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{name}: {done_of(done, total, unit)}"
    text += f", {rate:,.0f}/s, {duration(seconds)}" if total != 0 else f", {duration(seconds)}"
    if total is not None and 0 < done < total and rate > 0:
        text += f", {duration((total - done) / rate)} left"
    return text
