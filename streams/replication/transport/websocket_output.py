"""Output buffers of WebSockets: pieces of bytes that many connections share, passed to the transport in small parts.

A transport copies the bytes that it gets. So a page for a thousand slow viewers would be in memory a thousand times.
With this module, all connections refer to the same bytes, and each transport copies only about ``PIECE_BYTES`` at a
time. Assumes the reactor's thread and Twisted's own transports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from streams.core.bounded import BoundedDict

__all__ = ["PIECE_BYTES", "PreparedTexts", "SharedOutput"]

PIECE_BYTES = 32 * 1024


class SharedOutput:
    """A queue of output for one transport.

    It is a *pull producer*: the transport requests each part after it has sent the last one.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._pieces: deque[bytes] = deque()
        self._begun = 0  # bytes of the first piece that the transport has received
        self.waiting_bytes = 0
        """Bytes that the transport has not received yet."""

    def write(self, data: bytes) -> None:
        """Queues ``data`` behind all earlier bytes."""
        self._pieces.append(data)
        self.waiting_bytes += len(data)
        if self._transport.producer is not self:
            self._transport.unregisterProducer()  # HTTP's producer, from before the upgrade to a WebSocket
            self._transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Writes the next part of the output to the transport. Called by the transport when it has sent the last part."""
        if self._pieces:
            self._transport.write(self._take())
        if not self._pieces:
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        """Drops the queue. Called by the transport when the connection is lost."""
        self._pieces.clear()
        self.waiting_bytes = 0

    def _take(self) -> bytes:
        first = self._pieces[0]
        taken = first[self._begun : self._begun + PIECE_BYTES]
        self._begun += len(taken)
        self.waiting_bytes -= len(taken)
        if self._begun >= len(first):
            self._pieces.popleft()
            self._begun = 0
        return taken


class PreparedTexts:
    """A cache of the last few messages as WebSocket frames.

    A message to many clients is framed once, and all these clients share its bytes.
    """

    def __init__(self, kept: int = 4) -> None:
        self._frames: BoundedDict[str | bytes, Any] = BoundedDict(kept)

    def of(self, content: str | bytes, prepare: Callable[..., Any]) -> Any:
        """Returns the uncompressed WebSocket frame of ``content``, a text or bytes, from the cache if possible.

        ``prepare`` is the ``prepareMessage`` of autobahn's factory, which makes a frame.
        """
        found = self._frames.get(content)
        if found is None:
            data, is_binary = (content, True) if isinstance(content, bytes) else (content.encode(), False)
            found = prepare(data, isBinary=is_binary, doNotCompress=True)
            self._frames.put(content, found)
        return found
