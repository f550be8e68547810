"""Numbers of bytes in the kernel's buffers of a connection. On systems other than Linux these numbers are always 0."""

from __future__ import annotations

import fcntl
import socket
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


def end_unanswered(listener: socket.socket, seconds: float) -> None:
    """Makes the kernel end a connection of ``listener`` whose other end acknowledges nothing, or takes nothing, for this time."""
    # Accepted sockets inherit the option.
    limit_ms = min(round(seconds * 1000), 2**31 - 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(limit_ms, 1))
