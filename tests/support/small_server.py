"""An `HttpServer` that answers every HTTP request with ``ok``. ``python -m tests.support.small_server`` prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from streams.replication.transport.http_server import HttpServer


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.002)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)

    port = listener.getsockname()[1]

    async def begin() -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    async def end() -> None:
        await server.finish_requests()
        await server.cancel_requests()

    server = HttpServer(answer, listener, begin, end)
    server.run()


if __name__ == "__main__":
    main()
