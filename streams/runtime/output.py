"""Writes a command's output before Python ends, and ends without a traceback if no process reads the output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def output_written() -> Iterator[None]:
    """Writes the standard output after the block. If the output cannot be written, ends the process with exit status 1.

    Without this context manager, ``manage.py streams | head`` ends with a traceback. Python's buffer holds up to 8 kB,
    which the interpreter would write at its own end. If this write failed, Python would print a complaint, and the exit
    status would be 120, whatever the command returned.
    """
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        _discard_output()  # else Python complains again at the end
        sys.exit(1 if error.errno == errno.EPIPE else "error: the output cannot be written: the disk is full")


def _discard_output() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
