"""Numbers of bytes in the kernel's buffers of a connection. On systems other than Linux these numbers are always 0."""

from __future__ import annotations

import fcntl
import sys
import termios

_NOTHING = bytes(4)


def kernel_bytes(descriptor: int) -> tuple[int, int]:
    """Returns two byte counts of a TCP socket: (sent but not acknowledged by the other host, received but not read here).

    Both are 0 for a closed descriptor and on systems other than Linux.
    """
    if descriptor < 0 or sys.platform != "linux":
        return 0, 0
    return _ask(descriptor, termios.TIOCOUTQ), _ask(descriptor, termios.FIONREAD)


def _ask(descriptor: int, question: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, question, _NOTHING), sys.byteorder)
    except OSError:  # it was closed meanwhile
        return 0
