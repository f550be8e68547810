"""Helps to close a listener without resetting connections that wait to be accepted.

On systems other than Linux, a few connections may be reset.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import struct
import sys

_SO_ATTACH_FILTER = 26
#: A classic BPF program over the TCP header: (operation, jump if true, jump if false, operand).
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load byte 13: the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # take it
)


def drop_handshakes(listener: socket.socket) -> None:
    """Makes the kernel drop requests for new connections, and finish handshakes that have begun.

    The caller then accepts the queued connections, and closes the listener. Without this function, client B could
    connect after the last accept and before the close. The close would reset the connection of B, whose request may
    already be sent and must not be sent twice. With this function, the kernel drops B's first packet. B's kernel
    repeats the packet after a second and finds the port closed, and B uses another server. Has no effect on systems
    other than Linux.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN))
    with contextlib.suppress(OSError):  # a kernel without filters: the listener is closed all the same
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
        )


def is_queued(listener: socket.socket) -> bool:
    """Returns true if a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))
