"""Numbers of bytes in the kernel's buffers of a connection, and the end of bytes that nobody takes.

On systems other than Linux these numbers are always 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import termios
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

C = TypeVar("C")
_NOTHING = bytes(4)
_SIOCOUTQNSD = 0x894B


def kernel_bytes(descriptor: int) -> tuple[int, int]:
    """Returns two byte counts of a TCP socket: (sent but not acknowledged by the other host, received but not read here).

    Both are 0 for a closed descriptor and on systems other than Linux.
    """
    if descriptor < 0 or sys.platform != "linux":
        return 0, 0
    return _ask(descriptor, termios.TIOCOUTQ), _ask(descriptor, termios.FIONREAD)


def unsent_bytes(descriptor: int) -> int:
    """Returns the number of bytes of a TCP socket that the kernel has not sent yet: the line, or the other end, takes no more.

    0 for a closed descriptor and on systems other than Linux.
    """
    return _ask(descriptor, _SIOCOUTQNSD) if descriptor >= 0 and sys.platform == "linux" else 0


def _ask(descriptor: int, question: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, question, _NOTHING), sys.byteorder)
    except OSError:  # it was closed meanwhile
        return 0


def bound_the_rest(descriptor: int, seconds: float) -> None:
    """Makes the kernel forget what waits for the other end of a connection that is being closed, after this time.

    The kernel counts from the first closed window, also while the other end takes what fits in a small buffer. So an open
    connection must not have this limit; `end_unanswered` is for those.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(round(min(seconds * 1000, 2**31 - 1)), 1))


async def end_unanswered(
    seconds: float, connections: Callable[[], Mapping[C, int]], abort: Callable[[C], None]
) -> None:
    """Calls ``abort`` for each connection whose other end acknowledges nothing, or takes nothing, for this time. Never returns.

    ``connections`` returns the open connections with their descriptors. The time may be longer by a quarter.
    """
    since: dict[C, tuple[int, float]] = {}
    while True:
        await asyncio.sleep(seconds / 4)
        now, before = time.monotonic(), since
        since = {}
        for connection, descriptor in connections().items():
            if kernel_bytes(descriptor)[0]:
                count, at = before.get(connection, (-1, now))
                since[connection] = (count, at) if count == (new := _acknowledged(descriptor)) else (new, now)
                if now >= since[connection][1] + seconds:
                    abort(connection)


def _acknowledged(descriptor: int) -> int:
    # The count of unsent bytes alone does not tell: it grows by what is written meanwhile.
    with socket.socket(fileno=os.dup(descriptor)) as made:
        return int.from_bytes(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)[120:], sys.byteorder)
