"""A pipe that wakes a thread which waits for file descriptors (pure)."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress


class WakeUp:
    """A pipe that wakes a waiting thread.

    ``ring`` takes no lock, so any thread may call it, and so may any callback of the garbage collector.

    The pipe is closed when this object is freed, and there is no method that closes it. With such a method: thread A
    reads the number of the descriptor, thread B closes the pipe, thread C opens a file that gets the same number, and A
    writes into C's file. Keep the object out of reference cycles. In a cycle, the pipe would stay open until the
    garbage collector runs.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        weakref.finalize(self, _close, self._read, self._write).atexit = False
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        """Makes the descriptor readable."""
        with suppress(BlockingIOError):  # the pipe is full, so it is readable already
            os.write(self._write, b"w")

    def hush(self) -> None:
        with suppress(BlockingIOError):  # the pipe is empty
            os.read(self._read, 65_536)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
