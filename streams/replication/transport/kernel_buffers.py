"""How much of a connection lies in the system's buffers; Linux tells, other systems are taken for empty."""

from __future__ import annotations

import fcntl
import sys
import termios

__all__ = ["kernel_bytes"]

_NOTHING = bytes(4)


def kernel_bytes(descriptor: int) -> tuple[int, int]:
    """(sent and not acknowledged by the other host, received and not read by us) of a TCP socket."""
    if descriptor < 0 or sys.platform != "linux":
        return 0, 0
    return _ask(descriptor, termios.TIOCOUTQ), _ask(descriptor, termios.FIONREAD)


def _ask(descriptor: int, question: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, question, _NOTHING), sys.byteorder)
    except OSError:  # it was closed meanwhile
        return 0
