"""Serves the process's own metrics over HTTP on one of ``REPLSITE_METRICS_PORTS``.

The server runs on an event loop in a thread of its own, so that a client needs no thread. Another thread renders the
pages. A connection may make one request, within a time limit. If there are too many clients, the server disconnects a
client that has not sent a complete request, or that already has its answer. There is no authentication: the port listens
on loopback unless the settings name another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CONTENT_TYPE_LATEST

from replsite.metrics.shared_rendering import SharedRendering
from streams.replication.transport.addresses import BACKLOG, Address, bind

#: Time limit from the connection to the end of the request's head, and again from the answer's first byte to its last.
REQUEST_SECONDS = 10.0
MOST_CLIENTS = 200
HEAD_BYTES = 16 * 1024


class MetricsPort:
    """A port that serves metrics.

    The constructor binds the port, and raises `PortTaken` or `BadAddress` if it cannot.
    """

    def __init__(self, address: Address, render: Callable[[], bytes]) -> None:
        self._socket, self.address = bind(address)
        self._page = SharedRendering(render)
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="replsite-metrics-page")
        #: Tasks that wait for their client, to send its request or to close. The one that waits longest is the first.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._clients = 0

    def start(self) -> None:
        """Starts serving in a daemon thread, until the process ends."""
        threading.Thread(target=asyncio.run, args=(self._serve(),), name="replsite-metrics-port", daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._come, sock=self._socket, limit=HEAD_BYTES, backlog=BACKLOG)
        await server.serve_forever()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or not self._has_room():
            writer.transport.abort()
            return
        self._clients += 1
        self._waiting[task] = None
        try:
            with contextlib.suppress(
                TimeoutError, EOFError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError
            ):
                await self._answer(reader, writer, task)
        finally:
            self._waiting.pop(task, None)
            self._clients -= 1
            writer.transport.abort()  # also ends a client that was cancelled or timed out

    def _has_room(self) -> bool:
        if self._clients < MOST_CLIENTS:
            return True
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        # Removed at once, so that the next new client cancels another task. Until this task has ended, its client still
        # counts.
        del self._waiting[oldest]
        oldest.cancel()
        return True

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        self._waiting.pop(task, None)
        method = head.partition(b" ")[0]
        status, body = b"405 Method Not Allowed", b""
        if method in (b"GET", b"HEAD"):
            asked = time.monotonic()
            body = await asyncio.get_running_loop().run_in_executor(self._renderer, self._page.get, asked)
            status = b"200 OK"
        writer.transport.set_write_buffer_limits(0)  # makes drain() wait until all bytes have been sent
        writer.write(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (status, CONTENT_TYPE_LATEST.encode(), len(body))
        )
        if method != b"HEAD":
            writer.write(body)
        async with asyncio.timeout(REQUEST_SECONDS):
            await writer.drain()
            writer.write_eof()
            self._waiting[task] = None  # the client has its answer, so it gives way to others
            # The client closes first: the abort that follows would discard bytes that it has not received yet.
            while await reader.read(HEAD_BYTES):
                pass
