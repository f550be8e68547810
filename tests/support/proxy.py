"""A TCP proxy in a thread that can cut, stall, delay and refuse: what networks do to followers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.waiting import DEADLINE_SECONDS


class Proxy:
    """Forwards to a port of this machine. All methods may be called from any thread."""

    def __init__(self, target_port: int) -> None:
        self.connections = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._refusing = False
        self._delay_seconds = 0.0
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Abort every connection."""
        self._call(self._cut())

    def stall(self, stalled: bool = True) -> None:
        """From now on nothing comes from the server, or again."""
        self._loop.call_soon_threadsafe(self._flowing.clear if stalled else self._flowing.set)

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, or take them again."""
        self._refusing = refusing

    def delay(self, seconds: float) -> None:
        """From now on every piece takes so much longer, in both directions."""
        self._delay_seconds = seconds

    def send_to(self, target_port: int) -> None:
        """New connections go to another port."""
        self._target_port = target_port

    def start(self) -> None:
        self._thread.start()
        self._call(self._start())

    def stop(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_SECONDS)
        self._loop.close()

    def _call(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_SECONDS)

    async def _start(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # nobody listens there: the client gets to know it
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        with suppress(OSError):
            await asyncio.gather(self._pump(reader, far_writer, False), self._pump(far_reader, writer, True))
        for one in (writer, far_writer):
            one.transport.abort()
            self._writers.discard(one)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_stall: bool) -> None:
        while data := await reader.read(65536):
            if may_stall:
                await self._flowing.wait()
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """A running proxy."""
    proxy = Proxy(port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
