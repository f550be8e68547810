"""Fetches missed facts over HTTP from our server or a real Synapse, for followers without access to the database.

The requests are described in ``docs/reference/http-catch-up.md``. Temporary errors (no connection, 5xx, too busy) are
retried a few times. If they persist, `CatchUpError` is raised, and the follower connects again. A permanent refusal is
raised as `GapError`, and a range below the low-water mark as ``ResyncNeeded``. So missed facts are never skipped
silently. Requests are sent one at a time, in a thread. A response larger than 64 MiB is refused.
"""

from __future__ import annotations

import asyncio
import http.client
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from streams.core.json_codec import MOST_DEPTH, is_deeper
from streams.errors import ResyncNeeded
from streams.replication.client.catch_up import CatchUp
from streams.replication.errors import BadAddress, CatchUpError, GapError
from streams.replication.protocol.commands import is_name
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.transport.tls import checking_context
from streams.runtime.logs import get_logger
from streams.runtime.text import safe_text

log = get_logger(__name__)

PATH = "/_synapse/replication/get_repl_stream_updates"
TIMEOUT_SECONDS = 30.0
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
ATTEMPTS = 4
FIRST_RETRY_SECONDS = 0.2
_MAY_PASS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class HttpServer:
    """The address of an HTTP server."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> HttpServer:
        """Parses ``http://HOST:PORT`` or ``https://…``, with an optional path as prefix. Raises `BadAddress`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadAddress(f"--catch-up-url {url!r}: {error}.") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise BadAddress(f"--catch-up-url {url!r} is no address: write http://HOST:PORT or https://HOST:PORT.")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.prefix}"

    def connection(self) -> http.client.HTTPConnection:
        """Returns a new connection object, which connects at its first request."""
        if self.is_tls:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=TIMEOUT_SECONDS, context=checking_context()
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)


@dataclass(frozen=True)
class HttpServers:
    """The servers for catch-up: ``by_writer`` maps writers to servers, and ``default`` serves all other writers."""

    default: HttpServer | None
    by_writer: Mapping[str, HttpServer]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> HttpServers:
        """Parses texts of the forms ``URL`` and ``WRITER=URL``. Raises `BadAddress`, also if two texts have no writer."""
        default: HttpServer | None = None
        by_writer: dict[str, HttpServer] = {}
        for text in texts:
            writer, equals, url = text.partition("=")
            if equals and "/" not in writer:
                by_writer[writer] = HttpServer.parse(url)
            elif default is not None:
                raise BadAddress(f"--catch-up-url {text!r}: one is given already; write WRITER=URL for a second one.")
            else:
                default = HttpServer.parse(text)
        return cls(default, by_writer)

    def server_for(self, stream: str, writer: str | None) -> HttpServer:
        """Returns the server for the writer's facts, or else the default server. Raises `GapError` if there is neither."""
        found = self.by_writer.get(writer or "", self.default)
        if found is None:
            raise GapError(f"Facts of {stream} of writer {writer!r} were missed: add --catch-up-url {writer}=URL.")
        return found


class _Updates(msgspec.Struct):
    """The body of the response to a catch-up request."""

    updates: list[list[Any]]
    upto_token: int
    limited: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    stream: str
    writer: str | None
    after: int
    upto: int

    def __str__(self) -> str:
        of = f" of writer {self.writer}" if self.writer else ""
        return f"Facts of {self.stream}{of} in ({self.after}, {self.upto}]"


class HttpCatchUp(CatchUp):
    """A source of missed facts that fetches them from HTTP servers.

    ``writers_of`` returns the known writers of a stream. It is needed for servers whose responses do not name the
    writer of a fact. ``secret`` is sent as bearer token, unless it is empty.
    """

    def __init__(
        self,
        servers: HttpServers,
        secret: str = "",
        writers_of: Callable[[str], Collection[str]] = lambda stream: (),
    ) -> None:
        self.writers_of = writers_of
        self.requests = 0
        self._servers = servers
        self._secret = secret
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="http-catch-up")
        self._connections: dict[HttpServer, http.client.HTTPConnection] = {}

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        asked = _Asked(stream, writer, after, upto)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, asked)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=True)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _fetch(self, asked: _Asked) -> tuple[list[FollowedRow], int]:
        server = self._servers.server_for(asked.stream, asked.writer)
        body = self._ask(server, asked)
        try:
            answer = msgspec.json.decode(body, type=_Updates)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise GapError(f"{asked} were missed: what {server} answers is no list of updates ({error}).") from error
        reached = answer.upto_token if answer.limited else asked.upto
        if not asked.after < reached <= asked.upto:
            raise GapError(f"{asked} were missed: {server} says that it got to {reached}, which leads nowhere.")
        return self._rows(asked, answer.updates, reached), reached

    def _rows(self, asked: _Asked, updates: list[list[Any]], reached: int) -> list[FollowedRow]:
        # Some old servers also send rows outside of the range, or do not sort them.
        rows: list[FollowedRow] = []
        for update in updates:
            if len(update) not in (2, 3) or type(update[0]) is not int:
                raise GapError(f"{asked} were missed: an update is {str(update)[:60]}, not [token, row].")
            if asked.after < update[0] <= reached:
                instance = update[2] if len(update) == 3 else asked.writer or self._only_writer(asked)
                if not isinstance(instance, str) or not is_name(instance):
                    raise GapError(f"{asked} were missed: {str(instance)[:60]!a} is no name of a writer.")
                if asked.writer and instance != asked.writer:  # its facts come with its own announcements
                    raise GapError(
                        f"{asked} were missed: the server gives a fact of writer {instance!r} in the place of one."
                    )
                if is_deeper(update[1], MOST_DEPTH):
                    raise GapError(f"{asked} were missed: a row is nested deeper than {MOST_DEPTH} levels.")
                rows.append(FollowedRow(asked.stream, instance, update[0], update[1]))
        rows.sort(key=lambda row: row.token)
        return rows

    def _only_writer(self, asked: _Asked) -> str:
        known = list(self.writers_of(asked.stream))
        if len(known) != 1:
            raise GapError(
                f"{asked} were missed: the server does not say whose facts they are, and {len(known)} writers are known. "
                f"Follow with --view writer."
            )
        return known[0]

    def _ask(self, server: HttpServer, asked: _Asked) -> bytes:
        # The path holds a transaction ID, and is the same in all attempts. So if only the answer was lost, the server can
        # send it again from its cache.
        path = _path(server, asked)
        retry_seconds = FIRST_RETRY_SECONDS
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(retry_seconds)
                retry_seconds *= 2
            try:
                status, body = self._request(server, path)
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{server} cannot be asked: {error or type(error).__name__}"
                continue
            if status == 200:
                return body
            trouble = f"{server} answers {status}: {_error_text(body)}"
            if status not in _MAY_PASS:
                raise _refusal(asked, status, trouble)
        raise CatchUpError(f"{asked} cannot be fetched yet: {trouble}.")

    def _request(self, server: HttpServer, path: str) -> tuple[int, bytes]:
        connection = self._connections.get(server)
        if connection is None:
            connection = self._connections[server] = server.connection()
        self.requests += 1
        try:
            headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(ANSWER_LIMIT_BYTES + 1)
            if len(body) > ANSWER_LIMIT_BYTES:
                raise http.client.HTTPException(f"the answer is longer than {ANSWER_LIMIT_BYTES} bytes")
            return response.status, body
        except BaseException:  # the rest of an answer may be left in the connection: never use it again
            self._connections.pop(server).close()
            raise


def _path(server: HttpServer, asked: _Asked) -> str:
    query: dict[str, Any] = {"from_token": asked.after, "upto_token": asked.upto}
    query |= {"instance_name": asked.writer} if asked.writer else {"with_instances": "true"}
    return f"{server.prefix}{PATH}/{quote(asked.stream, safe='')}/{uuid.uuid4().hex}?{urlencode(query)}"


def _refusal(asked: _Asked, status: int, trouble: str) -> Exception:
    if status == 410:
        return ResyncNeeded(f"{asked} are gone: {trouble}.")
    remedy = {401: " Give the server's secret: --secret-file FILE.", 403: " See --secret-file."}.get(status, "")
    return GapError(f"{asked} were missed, and cannot be had: {trouble}.{remedy}")


def _error_text(body: bytes) -> str:
    text = body[:2000].decode("utf-8", "replace")
    with suppress(msgspec.MsgspecError, KeyError, TypeError, RecursionError):  # not every server answers with JSON
        text = msgspec.json.decode(body)["error"]
    return safe_text(str(text), 300)
