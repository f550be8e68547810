"""Limits the number of HTTP requests in progress, and shares the places fairly between clients.

Django handles each request in a thread, and each thread that queries the database has a connection. Without a limit, a
crowd of clients takes all connections of the server, and writers are refused. So a request needs a *place*: a permanent
thread with its connection. There are separate places for pages, questions of the live page, logins, scrapes, probes, catch-up,
waiting syncs, and requests without a database, so that none of these blocks another.

A request without a free place waits. A place that becomes free goes to the waiting client that has the fewest places. A
request that waited too long gets 503 with ``Retry-After``. If too many requests wait, the client with the most waiting
requests loses its oldest one in the same way. An answer of server-sent events gives its place back when it begins.

Assumes one event loop. A client is known by the address in the ASGI scope. ``Forwarded`` has replaced the address of a
proxy there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.db import connections
from django.urls import NoReverseMatch, reverse

from replsite.conf import site_settings
from streams.conf import stream_settings
from streams.replication.protocol.access import address_key, is_among, networks_of
from streams.runtime.logs import get_logger

__all__ = [
    "CAME",
    "LANES",
    "Busy",
    "ClientLimit",
    "PlacePool",
    "RequestPlaces",
    "request_threads_end",
    "when_idle",
]

log = get_logger(__name__)
WAIT_SECONDS = 10.0
#: An unused place closes its connection after this time.
IDLE_SECONDS = 60.0
RETRY_SECONDS = 5
#: Key in the scope: ``time.monotonic`` at which the request arrived, before it waited for its place.
CAME = "replsite.came"
Application = Callable[..., Awaitable[Any]]


class Busy(Exception):
    """The error of a request for which no place was free in time."""


class _Place:
    """A thread that keeps its database connection from request to request."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="replsite-request")
        self._idle: asyncio.TimerHandle | None = None

    def taken(self) -> None:
        """Marks the place as used, so that its connection stays open."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def rests(self) -> None:
        """Marks the place as unused. Its connection is closed after ``IDLE_SECONDS``."""
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(IDLE_SECONDS, self.executor.submit, connections.close_all)


class PlacePool:
    """A pool of places for one kind of request. A place is a thread with its database connection."""

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
        """The number of requests that have a place."""
        return self._at_work.total()

    async def enter(self, client: str) -> _Place:
        """Returns a place for a request of this client. If no place is free, waits until one is.

        Raises `Busy` if the request has to wait too long, or too many requests wait.
        """
        place = self._free_place()
        if place is None:
            place = await self._wait(client)
        self._at_work[client] += 1
        place.taken()
        return place

    def leave(self, place: _Place, client: str) -> None:
        """Ends a request. Its place goes to the waiting client that has the fewest places, or becomes free if no client waits."""
        self._at_work[client] -= 1
        if not self._at_work[client]:
            del self._at_work[client]
        self._hand_on(place)

    def _free_place(self) -> _Place | None:
        """Returns a free place, or None if all places are taken.

        Prefers the place that was used last, so that the other places stay unused and close their connections.
        """
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
            # A request that was refused or cancelled leaves the queue only when its task runs again. Skip it.
            if not future.done():
                future.set_result(place)
                return
        self._free.append(place)
        place.rests()

    async def _wait(self, client: str) -> _Place:
        # The queue is full: the client with the most waiting requests loses its oldest one.
        if sum(map(len, self._waiting.values())) >= self._most_waiting:
            most = max(self._waiting, key=lambda one: len(self._waiting[one]))
            self._send_away(self._next_of(most))
        future: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        timer = asyncio.get_running_loop().call_later(self._wait_seconds, self._send_away, future)
        try:
            return await future
        except asyncio.CancelledError:
            # ``_hand_on`` gave this request a place, and before it ran again its client closed the connection. Without this
            # the place would be lost: the request is neither waiting nor at work.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._hand_on(future.result())
            raise
        finally:
            timer.cancel()
            self._forget(client, future)

    def _send_away(self, future: asyncio.Future[_Place]) -> None:
        if not future.done():
            self.refused += 1
            future.set_exception(Busy(f"all places for {self.name} are taken"))

    def _next_of(self, client: str) -> asyncio.Future[_Place]:
        """Removes and returns the oldest waiting request of a client. Its others then come behind those of equal clients."""
        waiting = self._waiting.pop(client)
        found = waiting.popleft()
        if waiting:
            self._waiting[client] = waiting
        return found

    def _forget(self, client: str, future: asyncio.Future[_Place]) -> None:
        waiting = self._waiting.get(client)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[client]


class RequestPlaces:
    """ASGI middleware around Django's HTTP handler that gives each request a place."""

    def __init__(self, application: Application, pages: int | None = None) -> None:
        self._application = application
        self._static = f"/{settings.STATIC_URL.lstrip('/')}"
        self._pages = PlacePool("pages", pages or site_settings().request_limit, 200)
        self._metrics = PlacePool("metrics", 4, 1_000)
        self._health = PlacePool("health", 2, 1_000)
        self._catch_up = PlacePool("catch-up", 8, 200)
        self._plain = PlacePool("files", 8, 1_000)
        # A waiting call keeps its place, but no database connection (``replsite.api.access.in_turn``).
        self._waits = PlacePool("waiting syncs", 100, 200)
        # Checking a password keeps a core busy for half a second. Twenty at a time would leave the event loop no CPU.
        self._logins = PlacePool("logins", max((os.cpu_count() or 1) // 2, 1), 100)
        self._refusals = Refusals()
        # Viewers ask each second. While the database is slow, they must not hold the places of other pages.
        self._live = PlacePool("live page", 4, 1_000)
        LANES[:] = [self._pages, self._metrics, self._health, self._catch_up, self._plain, self._logins, self._waits]
        LANES.append(self._live)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        lane, came = self._lane(scope["path"], scope.get("method", "GET")), time.monotonic()
        client = address_key((scope.get("client") or [""])[0])
        try:
            place = await lane.enter(client)
        except Busy as busy:
            self._refusals.log(scope, busy)
            await _answer_busy(scope, send)
            return
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                when_idle(place, lambda: lane.leave(place, client))

        async def send_on(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and _is_endless(message):
                end()
            await send(message)

        try:
            async with ThreadSensitiveContext(executor=place.executor):
                await self._application(scope | {CAME: came}, receive, send_on)
        finally:
            end()

    def _lane(self, path: str, method: str) -> PlacePool:
        if method == "POST" and path.endswith("/login/"):
            return self._logins
        if path == "/health/live" or path.startswith(self._static):
            return self._plain
        if path == "/metrics":
            return self._metrics
        if path.startswith("/health"):  # a load balancer sends no requests to a server that does not answer the probe
            return self._health
        if path.endswith("/sync") and _is_waiting_sync(path):
            return self._waits
        pages = self._live if path.endswith("/live/data/") else self._pages
        return self._catch_up if path.startswith("/_synapse/") else pages


class Refusals:
    """Logs refused requests: at most one line per ``WAIT_SECONDS``."""

    def __init__(self) -> None:
        self._log_at = 0.0

    def log(self, scope: dict[str, Any], busy: Busy) -> None:
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + WAIT_SECONDS
            log.warning("site.busy", reason=str(busy), path=scope["path"][:200])


def _is_waiting_sync(path: str) -> bool:
    """Returns true if the path is that of the API's ``sync``, which keeps no database connection.

    Returns false for every other path, even if its end is the same. Example: ``/admin/api/sync`` leads to Django's admin,
    which reads the session from the database. A hundred such requests, even of anonymous clients, would take a hundred
    connections.
    """
    try:
        head, _, tail = reverse("api:sync", args=["~"]).rpartition("~")
    except NoReverseMatch:  # the site has no API
        return False
    return re.fullmatch(f"{re.escape(head)}.+{re.escape(tail)}", path) is not None


def _is_endless(message: dict[str, Any]) -> bool:
    """Returns true for an answer of server-sent events (``streams.browsers``), which goes on without a thread."""
    kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
    return any(bytes(kind).startswith(b"text/event-stream") for kind in kinds)


def when_idle(place: _Place, call: Callable[[], None]) -> None:
    """Calls ``call`` on the event loop once the place's thread has nothing to do."""
    # A client asks for a slow page and disconnects. Django drops the request at once, but its thread works on. If the
    # place were free now, the next request could get it, and would wait for that thread while other places are free. So
    # an empty task is queued behind the work, and the place is free when this task is done.
    loop = asyncio.get_running_loop()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the server ended while the thread worked, and its event loop is closed
            loop.call_soon_threadsafe(call)

    place.executor.submit(int).add_done_callback(tell)


class ClientLimit:
    """ASGI middleware that limits the requests that one client has open at a time.

    Each client behind a configured proxy has a limit of its own.
    """

    def __init__(self, application: Application, most: int | None = None) -> None:
        self._application = application
        self._most = stream_settings().http_address_limit if most is None else most
        self._proxies = networks_of(stream_settings().proxy_networks, "REPLSITE_PROXY_NETWORKS")
        self._number_of: Counter[str] = Counter()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        host = (scope.get("client") or [""])[0]
        # The scope has the address of a proxy only if the proxy did not name its client. Such requests are not limited:
        # they may come from many clients.
        client = "" if is_among(host, self._proxies) else address_key(host)
        if client and 0 < self._most <= self._number_of[client]:
            await _answer_busy(scope, send)
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
    if scope["path"].startswith("/_synapse/") or "/api/v1/" in scope["path"]:
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


async def request_threads_end() -> None:
    """Waits until no thread works for a request, also for one that was cancelled. Awaited before the event loop ends."""
    # Django's middleware, in the thread, calls the event loop for the view. If the loop had ended, the call would never be
    # answered, and the process, which waits for its threads, would never end.
    while any(lane.at_work for lane in LANES):  # noqa: ASYNC110 - an event for each pool would be another count to keep right
        await asyncio.sleep(0.01)


#: All pools of this process, for the metrics.
LANES: list[PlacePool] = []
