"""Messages to the service manager: the process is ready, is alive, or ends. Does nothing without a service manager.

The manager (systemd, or a program like it) names a socket. Each message is one datagram to it. A message that cannot be
sent is dropped: a supervisor must not be able to block the process.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from streams.conf import stream_settings

__all__ = ["notify", "notify_watchdog"]

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
#: Signs of life within the manager's time-out.
_SIGNS = 3


def notify(*words: str) -> None:
    """Sends messages such as ``READY=1`` or ``STATUS=…`` in one datagram."""
    address = stream_settings().notify_socket
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace: a socket without a file
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto("\n".join(words).encode(), address)


async def notify_watchdog() -> None:
    """Sends signs of life until cancelled. Returns at once if the manager does not want any."""
    given_up_after = stream_settings().watchdog_seconds
    while given_up_after > 0:
        notify(ALIVE)
        await asyncio.sleep(given_up_after / _SIGNS)
