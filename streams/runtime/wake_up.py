"""A wake-up for a thread that waits for descriptors: something to read beside what it waits for (pure)."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress

__all__ = ["WakeUp"]


class WakeUp:
    """A pipe of its own; any thread may write into it, the garbage collector's callbacks too: no lock is taken.

    It is closed with the object and no sooner, so its owner lets go of it instead of closing it. Otherwise: A reads the number of
    the descriptor, B closes it, C opens a file that gets the number, A writes into C's file. Keep it out of cycles of
    references: what only the garbage collector finds stays open until then.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        weakref.finalize(self, _close, self._read, self._write).atexit = False
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The descriptor that can be read after ``ring``."""
        return self._read

    def ring(self) -> None:
        """Make it readable."""
        with suppress(BlockingIOError):  # full: it is about to be read anyway
            os.write(self._write, b"w")

    def hush(self) -> None:
        """Read all that was rung."""
        with suppress(BlockingIOError):
            os.read(self._read, 65_536)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
