"""Messages to the service manager (systemd or similar): the process is ready, is alive, or ends.

Without a service manager the functions do nothing. The manager names a socket, and each message is one datagram to this
socket. A message that cannot be sent is dropped, so that the manager cannot block the process.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from streams.conf import stream_settings

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
#: The number of signs of life in each time-out of the manager.
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
    """Sends signs of life until the coroutine is cancelled.

    Returns at once if the service manager does not ask for signs of life.
    """
    given_up_after = stream_settings().watchdog_seconds
    while given_up_after > 0:
        notify(ALIVE)
        await asyncio.sleep(given_up_after / _SIGNS)
