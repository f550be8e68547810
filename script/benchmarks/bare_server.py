"""The peer of the broadcast benchmark: a bare uvloop server that writes given bytes to everybody, 100 lines a write.

python -m script.benchmarks.bare_server FILE      (prints its port; writes when a line comes on standard input)
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import uvloop

LINES_A_WRITE = 100
BUFFER_BYTES = 1 << 20


class Peer(asyncio.Protocol):
    """One connection."""

    everybody: set[asyncio.Transport] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember it."""
        self._transport = cast("asyncio.Transport", transport)
        self.everybody.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.everybody.discard(self._transport)


async def run(path: Path) -> None:
    """Serve until standard input ends."""
    lines = path.read_bytes().splitlines(keepends=True)  # noqa: ASYNC240 - before anybody is served
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Peer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    while await loop.run_in_executor(None, sys.stdin.readline):
        for first in range(0, len(lines), LINES_A_WRITE):
            chunk = b"".join(lines[first : first + LINES_A_WRITE])
            for transport in Peer.everybody:
                transport.write(chunk)
            await asyncio.sleep(0)
            while any(transport.get_write_buffer_size() > BUFFER_BYTES for transport in Peer.everybody):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


if __name__ == "__main__":
    uvloop.run(run(Path(sys.argv[1])))
