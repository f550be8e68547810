"""What waits for the client of a WebSocket: pieces that many connections share, handed to the transport a little at a time.

The transport copies what it is given. A page for a thousand viewers would be there a thousand times while they are slow to take
it; here each holds a reference to the same bytes, and the transport no more than ``PIECE_BYTES`` or so. Assumes the reactor's
thread and Twisted's own transports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from streams.core.bounded import BoundedDict

__all__ = ["PIECE_BYTES", "PreparedTexts", "SharedOutput"]

PIECE_BYTES = 32 * 1024


class SharedOutput:
    """Writes to a transport in order; the transport asks for more when it has sent what it was given (a *pull producer*)."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._pieces: deque[bytes] = deque()
        self._begun = 0  # of the first piece so much was handed over
        self.waiting_bytes = 0
        """Not handed over yet."""

    def write(self, data: bytes) -> None:
        """Send it after all that was written before."""
        self._pieces.append(data)
        self.waiting_bytes += len(data)
        if self._transport.producer is not self:
            self._transport.unregisterProducer()  # that of HTTP, which spoke here before
            self._transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Called by the transport when it has nothing left to send."""
        if self._pieces:
            self._transport.write(self._take())
        if not self._pieces:
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        """Called by the transport when the connection is lost: nothing of it is kept."""
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
    """Messages as frames, the last few: what is sent to many is framed once, and is the same bytes for all."""

    def __init__(self, kept: int = 4) -> None:
        self._frames: BoundedDict[str | bytes, Any] = BoundedDict(kept)

    def of(self, content: str | bytes, prepare: Callable[..., Any]) -> Any:
        """Returns the frame of a text or of bytes; ``prepare`` is that of autobahn's factory."""
        found = self._frames.get(content)
        if found is None:
            data, is_binary = (content, True) if isinstance(content, bytes) else (content.encode(), False)
            found = prepare(data, isBinary=is_binary, doNotCompress=True)
            self._frames.put(content, found)
        return found
