"""Progress of a job: stage, rate and time left, on a terminal, as plain lines, and in the job's row.

A stage's work happens in the caller's thread (or in Spark); one thread of ours asks now and then how much is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from django.db import connections

from streams.runtime.logs import get_logger

__all__ = ["Progress", "Stage", "describe"]

log = get_logger(__name__)
_PLAIN_SECONDS = 2.0
_TERMINAL_SECONDS = 0.2
Store = Callable[[str, int, "int | None", "float | None"], None]


class Stage(Protocol):
    """What a stage is told and asked."""

    def __call__(self) -> int:
        """How much is done so far."""


class Progress:
    """Says how far the stages are, on ``stream`` and through ``store``."""

    def __init__(self, stream: TextIO, store: Store, *, quiet: bool = False) -> None:
        self._stream = stream
        self._store = store
        self._quiet = quiet
        self._terminal = stream.isatty()

    def say(self, text: str) -> None:
        """One plain line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str, done: Stage) -> Iterator[None]:
        """Report on a stage while the block runs; ``done`` is called from another thread."""
        begun = time.monotonic()
        ended = threading.Event()
        reporter = threading.Thread(target=self._report, args=(name, total, unit, done, ended), daemon=True)
        reporter.start()
        try:
            yield
        finally:
            ended.set()
            reporter.join()
        reached, seconds = total if total is not None else done(), time.monotonic() - begun
        self._store(name, reached, total, reached / seconds if seconds else None)
        self._show(describe(name, reached, total, unit, seconds), last=True)

    def _report(self, name: str, total: int | None, unit: str, done: Stage, ended: threading.Event) -> None:
        begun = time.monotonic()
        while not ended.wait(_TERMINAL_SECONDS if self._terminal else _PLAIN_SECONDS):
            try:
                reached, seconds = done(), time.monotonic() - begun
                self._store(name, reached, total, reached / seconds)
                self._show(describe(name, reached, total, unit, seconds), last=False)
            except Exception as error:  # noqa: BLE001 - the work itself must not end because of its report
                log.warning("progress.failed", stage=name, error=str(error))
        connections.close_all()  # this thread's own

    def _show(self, text: str, *, last: bool) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{text}" + ("\n" if last else ""))
            self._stream.flush()
        else:
            self.say(text)


def describe(name: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """One line: how much, how fast, how much longer."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{name}: {done:,}"
    text += f" of {total:,} {unit}" if total is not None else f" {unit}"
    text += f", {rate:,.0f}/s, {seconds:.1f} s"
    if total is not None and 0 < done < total and rate > 0:
        text += f", {(total - done) / rate:.0f} s left"
    return text
