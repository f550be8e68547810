"""Descriptors that the tests of a module leave open: a run has 1,024 of them, and some thousand tests."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["MOST_LEFT_OPEN", "OPEN", "LeftOpen"]

#: What is kept for the whole session is opened by the first module that needs it: connections, the warm interpreter, log files.
MOST_LEFT_OPEN = 30
OPEN = Path("/proc/self/fd")


class LeftOpen:
    """Counts after each test, and complains when a module ends with many more than it began with."""

    def __init__(self) -> None:
        self._began = _open()
        self._last = len(self._began)
        self._growth: dict[str, int] = {}

    def after_test(self, name: str, *, is_last_of_module: bool) -> str:
        """What is to be said of the module's descriptors; empty: nothing."""
        count = _count()
        if count > self._last:
            self._growth[name] = count - self._last
        self._last = count
        if not is_last_of_module:
            return ""
        if count - len(self._began) > MOST_LEFT_OPEN:
            gc.collect()  # what waits in cycles is not left open
        now = _open()
        left = sorted(what for number, what in now.items() if self._began.get(number) != what)
        grown, growth = len(now) - len(self._began), sorted(self._growth.items(), key=lambda one: -one[1])
        self._began, self._growth = now, {}
        if grown <= MOST_LEFT_OPEN:
            return ""
        after = ", ".join(f"{test} (+{more})" for test, more in growth[:10])
        return f"The module's tests left {grown} descriptors open, most of them after {after}: {', '.join(left)}"


def _count() -> int:
    """Open descriptors, without what they are, which would take a tenth of a small test's time."""
    return sum(1 for _ in os.scandir(OPEN)) - 1 if OPEN.exists() else 0  # without the one of the listing


def _open() -> dict[int, str]:
    found = {}
    for entry in list(OPEN.iterdir()) if OPEN.exists() else []:
        with suppress(OSError):  # the one of the listing
            found[int(entry.name)] = str(entry.readlink())
    return found
