"""Limits the number of HTTP requests in progress.

Django handles each request in a thread, and each thread that queries the database has a connection. Without a limit, a
crowd of clients takes all connections of the server, and writers are refused. So a request needs a *place*: a permanent
thread with its connection. There are separate places for pages, questions of the live page, readers of facts, logins, scrapes,
probes, catch-up, waiting syncs, and requests without a database, so that none of these blocks another.

A request without a free place waits. If it waits too long, or too many wait, it gets 503 with ``Retry-After``. The proxy
bounds how many requests one client has open. A request that goes on without a thread gives its place back early
(``streams.browsers.threads``).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.db import connections
from django.urls import NoReverseMatch, reverse

from replsite.conf import site_settings
from replsite.http.sessions import SessionStore, is_real
from streams.browsers.threads import LEAVE
from streams.core.bounded import BoundedDict
from streams.runtime.logs import get_logger

log = get_logger(__name__)
WAIT_SECONDS = 10.0
#: The least time until a request is refused. Clients that ask again at once would otherwise keep the event loop busy with
#: refusals, and each page needs the loop a dozen times: beside 500 such clients a page took 1.7 s.
REFUSED_AFTER_SECONDS = 1.0
#: An unused place closes its connection after this time.
IDLE_SECONDS = 60.0
RETRY_SECONDS = 5
#: Key in the scope: ``time.monotonic`` at which the request arrived, before it waited for its place.
CAME = "replsite.came"
#: The headers by which those who were answered before are known, and what the paths of the API have in them.
_CREDENTIALS, _API = (b"cookie", b"authorization"), "/api/v1/"
Application = Callable[..., Awaitable[Any]]


class Busy(Exception):
    """The error of a request for which no place was free in time."""


class _Place:
    """A thread that keeps its database connection from request to request."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="replsite-request")
        self.idle: asyncio.TimerHandle | None = None


class Pool:
    """The places for one kind of request."""

    def __init__(self, name: str, places: int, most_waiting: int, wait_seconds: float = WAIT_SECONDS) -> None:
        self.name = name
        self.refused = self.at_work = 0
        self._wait_seconds = wait_seconds
        self._waiting, self._most_waiting = 0, most_waiting
        # The place that was used last is taken first, so that the other places stay unused and close their connections.
        self._free: asyncio.LifoQueue[_Place] = asyncio.LifoQueue()
        for _ in range(places):
            self._free.put_nowait(_Place())

    @property
    def is_full(self) -> bool:
        return self._free.empty()

    async def enter(self) -> _Place:
        """Returns a place for a request. If no place is free, waits until one is.

        Raises `Busy` if the request has to wait too long, or too many requests wait.
        """
        try:
            if self._waiting >= self._most_waiting:
                raise TimeoutError
            self._waiting += 1
            try:
                async with asyncio.timeout(self._wait_seconds):
                    place = await self._free.get()
            finally:
                self._waiting -= 1
        except TimeoutError as error:
            self.refused += 1
            raise Busy(f"all places for {self.name} are taken") from error
        self.at_work += 1
        if place.idle is not None:
            place.idle.cancel()
        return place

    def leave(self, place: _Place) -> None:
        """Ends a request. Its place goes to the request that has waited longest, or becomes free."""
        self.at_work -= 1
        loop = asyncio.get_running_loop()
        place.idle = loop.call_later(IDLE_SECONDS, place.executor.submit, connections.close_all)
        self._free.put_nowait(place)


class RequestPlaces:
    """ASGI middleware around Django's HTTP handler that gives each request a place."""

    def __init__(self, application: Application, pages: int | None = None) -> None:
        self._application = application
        self._static = f"/{settings.STATIC_URL.lstrip('/')}"
        self._pages = Pool("pages", pages or site_settings().request_limit, 200)
        # While strangers take all places of pages, with made-up cookies for instance.
        self._users = Pool("pages of users", 2, 200)
        self._session = re.compile(rf"(?:^|[; ]){re.escape(settings.SESSION_COOKIE_NAME)}=(\w+)".encode())
        # Viewers ask each second. While the database is slow, they must not hold the places of other pages.
        self._live = Pool("live page", 4, 1_000)
        # A thousand questions with made-up cookies, each with a look for its session, must not come before who looks already.
        self._open = Pool("open live pages", 4, 1_000)
        # Each fact ends all long polls, and each asks again: a thousand of them must not come before pages.
        self._facts = Pool("facts", 4, 2_000)
        self._readers = Pool("readers of facts", 4, 2_000)
        # While strangers take all places of pages, as above. A program has a token, and no session.
        self._programs = Pool("known programs", 2, 200)
        self._by_end = {"/live/data/": self._live, "/facts/stream/": self._facts, "/facts/events/": self._facts}
        #: Pool -> the pool of those whom its kind of request has answered before.
        self._known = {self._live: self._open, self._facts: self._readers}
        self._viewers: BoundedDict[int, None] = BoundedDict(1_000)
        self._metrics = Pool("metrics", 4, 1_000)
        self._health = Pool("health", 2, 1_000)
        self._catch_up = Pool("catch-up", 8, 200)
        self._plain = Pool("files", 8, 1_000)
        # A waiting call keeps its place, but no database connection (``replsite.api.access.in_turn``).
        self._waits = Pool("waiting syncs", 100, 200)
        # Checking a password keeps a core busy for half a second. Twenty at a time would leave the event loop no CPU.
        self._logins = Pool("logins", max((os.cpu_count() or 1) // 2, 1), 100)
        POOLS[:] = [self._pages, self._metrics, self._health, self._catch_up, self._plain, self._logins, self._waits]
        POOLS.extend([self._live, self._open, self._facts, self._readers, self._users, self._programs])
        self._log_at = 0.0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        pool, came = self._pool_for(scope["path"], scope.get("method", "GET")), time.monotonic()
        session: str | None = None
        known = self._programs if pool is self._pages and _is_operation(scope["path"]) else self._known.get(pool)
        if known is not None:
            viewer = hash(tuple(value for name, value in scope["headers"] if name in _CREDENTIALS))
            is_next = viewer in self._viewers and (pool is not self._pages or pool.is_full)
            if (
                not is_next and pool is not self._pages and pool.is_full
            ):  # a page that opens, or after a restart of the server
                is_next = bool(session := self._session_of_user(scope["headers"]))
            pool, send = known if is_next else pool, self._remembering(viewer, send)
        elif pool is self._pages and pool.is_full and (session := self._session_of_user(scope["headers"])):
            pool = self._users
        try:
            place = await pool.enter()
        except Busy as busy:
            if came >= self._log_at:
                self._log_at = came + WAIT_SECONDS
                log.warning("site.busy", reason=str(busy), path=scope["path"][:200])
            await asyncio.sleep(max(came + REFUSED_AFTER_SECONDS - time.monotonic(), 0.0))
            await _answer_busy(scope, send)
            return
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                if session is not None:
                    # Not every page asks for its session, so one that was deleted since would keep this place for ever.
                    place.executor.submit(SessionStore(session).load)
                when_idle(place, lambda: pool.leave(place))

        try:
            async with ThreadSensitiveContext(executor=place.executor):
                await self._application(scope | {CAME: came, LEAVE: end}, receive, send)
        finally:
            end()

    def _session_of_user(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        found = (self._session.search(value) for name, value in headers if name == b"cookie")
        return next((key for match in found if match is not None and is_real(key := match[1].decode())), None)

    def _remembering(self, viewer: int, send: Any) -> Any:
        async def remember_and_send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if message["status"] < 300 or message["status"] == 304:
                    self._viewers.put(viewer, None)
                elif message["status"] < 500:
                    self._viewers.pop(viewer, None)
            await send(message)

        return remember_and_send

    def _pool_for(self, path: str, method: str) -> Pool:
        if method == "POST" and path.endswith("/login/"):
            return self._logins
        if path == "/health/live" or path.startswith(self._static):
            return self._plain
        if path == "/metrics":
            return self._metrics
        # A load balancer sends no requests to a server that does not answer the probe. A proxy that forbids strangers these
        # addresses lets ``/healthx`` pass.
        if path in ("/health", "/health/ready"):
            return self._health
        if path.endswith("/sync") and _is_waiting_sync(path):
            return self._waits
        pages = next((pool for end, pool in self._by_end.items() if path.endswith(end)), self._pages)
        return self._catch_up if path.startswith("/_synapse/") else pages


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
    return re.fullmatch(f"{re.escape(head)}.+{re.escape(tail)}", path, re.DOTALL) is not None


def _is_operation(path: str) -> bool:
    """Returns true if the path may be that of an operation of the API, which answers nobody without a token."""
    return _API in path and not path.endswith("/openapi.json")


def when_idle(place: _Place, call: Callable[[], None]) -> None:
    """Calls ``call`` on the event loop once the place's thread has nothing to do."""
    # A client asks for a slow page and disconnects. Django drops the request at once, but its thread works on. If the
    # place were free now, the next request could get it, and would wait for that thread while other places are free. So
    # an empty task is queued behind the work, and the place is free when this task is done.
    loop = asyncio.get_running_loop()

    def free(_: object) -> None:
        with suppress(RuntimeError):  # the server ended while the thread worked, and its event loop is closed
            loop.call_soon_threadsafe(call)

    place.executor.submit(int).add_done_callback(free)


async def _answer_busy(scope: dict[str, Any], send: Any) -> None:
    body, kind = b"Too many requests at once. Try again in a few seconds.\n", b"text/plain; charset=utf-8"
    if scope["path"].startswith("/_synapse/") or _API in scope["path"]:
        error = {"errcode": "M_LIMIT_EXCEEDED", "error": body.decode().strip()}
        body, kind = json.dumps(error, separators=(",", ":")).encode(), b"application/json"
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
    while any(pool.at_work for pool in POOLS):  # noqa: ASYNC110 - an event for each pool would be another count to keep right
        await asyncio.sleep(0.01)


#: All pools of this process, for the metrics.
POOLS: list[Pool] = []
