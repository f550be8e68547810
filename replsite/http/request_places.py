"""How many HTTP requests are worked on at a time, and whose turn it is.

Django works on each request in a thread, and each thread that asks the database has a connection. Without a bound a crowd of
clients takes all connections that the server has, and writers are refused. Here a request needs a *place*: a thread that
stays, with its connection. There are places for pages, for logins, for scrapes, for probes, for catch-up, and for what asks no
database, so none of these keeps another out. Who finds none free waits a while, in turn with other clients: the next place
goes to the client that has fewest. When too many wait, the oldest of the client that has most is sent away, with 503 and
``Retry-After``.

Assumes one event loop. The client is that of the scope: behind ``forwarded`` it is the real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.db import connections

from streams.conf import stream_settings
from streams.replication.protocol.access import address_key, is_among, networks_of
from streams.runtime.logs import get_logger

__all__ = ["CAME", "LANES", "Busy", "ClientLimit", "Lane", "RequestPlaces"]

log = get_logger(__name__)
WAIT_SECONDS = 10.0
#: A place that nobody needs gives its connection back.
IDLE_SECONDS = 60.0
RETRY_SECONDS = 5
#: In the scope: when the request came, before it waited for its place; of ``time.monotonic``.
CAME = "replsite.came"
Application = Callable[..., Awaitable[Any]]


class Busy(Exception):
    """No place was free in time."""


class _Place:
    """A thread, which keeps its database connection from request to request."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="replsite-request")
        self._idle: asyncio.TimerHandle | None = None

    def taken(self) -> None:
        """It has something to do."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def rests(self) -> None:
        """Nobody needs it now."""
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(IDLE_SECONDS, self.executor.submit, connections.close_all)


class Lane:
    """Places for one kind of request."""

    def __init__(self, name: str, places: int, most_waiting: int, wait_seconds: float = WAIT_SECONDS) -> None:
        self.name = name
        self.refused = 0
        self._wait_seconds = wait_seconds
        self._most_waiting = most_waiting
        self._unused = places
        self._free: list[_Place] = []
        self._at_work: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[_Place]]] = {}

    @property
    def at_work(self) -> int:
        """Requests that have a place."""
        return self._at_work.total()

    async def enter(self, client: str) -> _Place:
        """A place for a request of this client; raises `Busy`."""
        place = self._free_place()
        if place is None:
            place = await self._wait(client)
        self._at_work[client] += 1
        place.taken()
        return place

    def leave(self, place: _Place, client: str) -> None:
        """The request is done: its place goes to the waiting client that has fewest."""
        self._at_work[client] -= 1
        if not self._at_work[client]:
            del self._at_work[client]
        self._hand_on(place)

    def _free_place(self) -> _Place | None:
        """The one that rested last: the others may give their connections back."""
        if self._free:
            return self._free.pop()
        if self._unused:
            self._unused -= 1
            return _Place()
        return None

    def _hand_on(self, place: _Place) -> None:
        while self._waiting:
            client = min(self._waiting, key=lambda one: self._at_work[one])
            future = self._next_of(client)
            if not future.done():
                future.set_result(place)
                return
        self._free.append(place)
        place.rests()

    async def _wait(self, client: str) -> _Place:
        if sum(map(len, self._waiting.values())) >= self._most_waiting:
            most = max(self._waiting, key=lambda one: len(self._waiting[one]))
            self._send_away(self._next_of(most))
        future: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        timer = asyncio.get_running_loop().call_later(self._wait_seconds, self._send_away, future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._hand_on(future.result())  # it was given to us in the turn in which we were cancelled
            raise
        finally:
            timer.cancel()
            self._forget(client, future)

    def _send_away(self, future: asyncio.Future[_Place]) -> None:
        if not future.done():
            self.refused += 1
            future.set_exception(Busy(f"all places for {self.name} are taken"))

    def _next_of(self, client: str) -> asyncio.Future[_Place]:
        waiting = self._waiting[client]
        found = waiting.popleft()
        if not waiting:
            del self._waiting[client]
        return found

    def _forget(self, client: str, future: asyncio.Future[_Place]) -> None:
        waiting = self._waiting.get(client)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[client]


class RequestPlaces:
    """ASGI middleware around Django's handler of HTTP."""

    def __init__(self, application: Application, pages: int | None = None) -> None:
        self._application = application
        self._static = f"/{settings.STATIC_URL.lstrip('/')}"
        self._pages = Lane("pages", pages or int(getattr(settings, "REPLSITE_REQUEST_LIMIT", 20)), 200)
        self._metrics = Lane("metrics", 4, 1_000)
        self._health = Lane("health", 2, 1_000)
        self._catch_up = Lane("catch-up", 8, 200)
        self._plain = Lane("files", 8, 1_000)
        # A password is half a second of a core: twenty at a time leave the loop none.
        self._logins = Lane("logins", max((os.cpu_count() or 1) // 2, 1), 100)
        self._tell_at = 0.0
        LANES[:] = [self._pages, self._metrics, self._health, self._catch_up, self._plain, self._logins]

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        lane, came = self._lane(scope["path"], scope.get("method", "GET")), time.monotonic()
        client = address_key((scope.get("client") or [""])[0])
        try:
            place = await lane.enter(client)
        except Busy as busy:
            await self._refuse(scope, send, busy)
            return
        try:
            async with ThreadSensitiveContext(executor=place.executor):
                await self._application(scope | {CAME: came}, receive, send)
        finally:
            _when_idle(place, lambda: lane.leave(place, client))

    def _lane(self, path: str, method: str) -> Lane:
        if method == "POST" and path.endswith("/login/"):
            return self._logins
        if path == "/health/live" or path.startswith(self._static):
            return self._plain
        if path == "/metrics":
            return self._metrics
        if path.startswith("/health"):  # a balancer takes a server out that has no place for this
            return self._health
        return self._catch_up if path.startswith("/_synapse/") else self._pages

    async def _refuse(self, scope: dict[str, Any], send: Any, busy: Busy) -> None:
        if time.monotonic() >= self._tell_at:  # one line for a crowd
            self._tell_at = time.monotonic() + WAIT_SECONDS
            log.warning("site.busy", reason=str(busy), path=scope["path"][:200])
        await _answer_busy(scope, send)


def _when_idle(place: _Place, call: Callable[[], None]) -> None:
    """Call it when the place's thread has nothing to do.

    A client asks for a slow page and goes. Django gives the request up at once, but its thread works on. The next request at
    this place would wait for that thread, with other places free.
    """
    loop = asyncio.get_running_loop()
    rest = place.executor.submit(int)
    rest.add_done_callback(lambda _: loop.call_soon_threadsafe(call))


class ClientLimit:
    """ASGI middleware: so many requests and WebSockets at a time of one client; also of one that comes through a proxy."""

    def __init__(self, application: Application, most: int | None = None) -> None:
        self._application = application
        self._most = stream_settings().http_address_limit if most is None else most
        self._proxies = networks_of(stream_settings().proxy_networks, "REPLSITE_PROXY_NETWORKS")
        self._number_of: Counter[str] = Counter()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        host = (scope.get("client") or [""])[0]
        client = "" if is_among(host, self._proxies) else address_key(host)  # a proxy that does not say for whom
        if client and 0 < self._most <= self._number_of[client]:
            if scope["type"] == "http":
                await _answer_busy(scope, send)
            else:
                await send({"type": "websocket.close"})
            return
        self._number_of[client] += 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._number_of[client] -= 1
            if not self._number_of[client]:
                del self._number_of[client]


async def _answer_busy(scope: dict[str, Any], send: Any) -> None:
    body, kind = b"Too many requests at once. Try again in a few seconds.\n", b"text/plain; charset=utf-8"
    if scope["path"].startswith("/_synapse/"):
        said = {"errcode": "M_LIMIT_EXCEEDED", "error": body.decode().strip()}
        body, kind = json.dumps(said, separators=(",", ":")).encode(), b"application/json"
    headers = [
        (b"Content-Type", kind),
        (b"Content-Length", str(len(body)).encode()),
        (b"Retry-After", str(RETRY_SECONDS).encode()),
        (b"Cache-Control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


#: Those of this process, for the metrics.
LANES: list[Lane] = []
