"""An `AsgiServer` that answers every HTTP request with ``ok``. ``python -m tests.support.small_server`` prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from streams.replication.transport.tcp_scope import AsgiServer


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.002)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class SmallServer(AsgiServer):
    port = 0

    def announce(self) -> None:
        sys.stdout.write(f"{self.port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    server = SmallServer(answer, http_sockets=[listener])
    server.port = listener.getsockname()[1]
    server.run()
