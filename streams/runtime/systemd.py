"""Tells the service manager that this process is ready, that it lives, and that it ends; silent where there is none.

The manager (systemd, or whoever starts programs like it) names a socket; each word is one datagram to it. A word that cannot be
sent is dropped: whoever supervises us must not be able to stop us.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from streams.conf import stream_settings

__all__ = ["keep_telling", "tell"]

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
#: Signs of life within the time after which the manager gives a process up.
_SIGNS = 3


def tell(*words: str) -> None:
    """Send words such as ``READY=1`` or ``STATUS=…``."""
    address = stream_settings().notify_socket
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto("\n".join(words).encode(), address)


async def keep_telling() -> None:
    """Give signs of life for as long as the loop runs this; ends at once where nobody wants any."""
    given_up_after = stream_settings().watchdog_seconds
    while given_up_after > 0:
        tell(ALIVE)
        await asyncio.sleep(given_up_after / _SIGNS)
