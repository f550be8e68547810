"""An `HttpServer` that answers every HTTP request with ``ok``. ``python -m tests.support.small_server`` prints its port.

With the argument ``slow`` Django answers, after a second, and the server cuts requests at its end after a tenth of one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import re_path

from streams.replication.transport import http_server
from streams.replication.transport.http_server import HttpServer


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.002)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def slow(request: Any) -> Any:
    sys.stdout.write("began\n")
    sys.stdout.flush()
    await asyncio.sleep(1)
    return HttpResponse("ok")


urlpatterns = [re_path("", slow)]


def slow_django() -> Any:
    logging.basicConfig()
    http_server.FINISH_SECONDS = 0.1
    settings.configure(
        ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["django.middleware.common.CommonMiddleware"]
    )
    handler, executor = get_asgi_application(), ThreadPoolExecutor(1)

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        async with ThreadSensitiveContext(executor=executor):  # as each request of a site has one
            await handler(scope, receive, send)

    return application


def main() -> None:
    is_slow = "slow" in sys.argv
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)

    port = listener.getsockname()[1]

    async def begin() -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    async def end() -> None:
        await server.finish_requests()
        await server.cancel_requests()
        await asyncio.sleep(2 * is_slow)

    server = HttpServer(slow_django() if is_slow else answer, listener, begin, end)
    server.run()


if __name__ == "__main__":
    main()
