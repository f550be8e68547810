"""Sends the facts of a stream to browsers over either transport: permission, rendering of a fact, and starting token.

A ``BrowserStream`` declares which requests may read a stream, and how its facts are rendered. A ``BrowserClient`` is
the connection of one browser. Three transports use them: server-sent events (``streams.browsers.view``), WebSockets
(``streams.browsers.consumer``) and the protocol Durable Streams (``streams.browsers.durable``).

A client uses a listener (``streams.waiting.listen``). The listener keeps a token and at most a page of facts, and waits
without a thread. Clients at the same token share a read of the database, and a fact is rendered once for all clients.

A connection ends after a number of bytes or after some time, and the browser connects again with its last token.
Connections end for two reasons. Each new connection checks the permission again. And some web servers buffer output
without a limit, so that a slow browser could fill their memory.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

from django.core.exceptions import PermissionDenied
from django.core.serializers.json import DjangoJSONEncoder

from streams.browsers.threads import CHECKS, READS, leave_the_requests_thread
from streams.conf import stream_settings
from streams.db import driver
from streams.db.consistent_read import limited_waits, sentence_for
from streams.errors import EpochChanged, ResyncNeeded, TokenError
from streams.instances import row_of
from streams.runtime.logs import get_logger
from streams.waiting.pages import end_token, position_of

if TYPE_CHECKING:
    from django.http import HttpRequest

    from streams.stream_object import Stream
    from streams.waiting.listen import Listener

__all__ = ["WHAT_HAPPENS", "Allow", "BrowserClient", "BrowserStream", "Message", "Only", "Refused", "Render"]
__all__ += ["counts", "end_all", "json_of", "open_clients"]

log = get_logger(__name__)
#: The least time between two log lines of a stream which say that a browser was refused because there were too many.
LOG_SECONDS = 10.0
Allow = Callable[[Any], Any]
Render = Callable[[Any], Any]
Only = Callable[[Any, Any], bool]
Part = TypeVar("Part", str, bytes)

#: The clients of this process. A client that is dropped before it began leaves the set with its last reference.
_clients: WeakSet[BrowserClient] = WeakSet()
#: The keys of ``counts``. The first four count connections: begun, refused because there were too many, refused for
#: another reason, and asked to load their state again. All other keys are reasons why a connection ended.
WHAT_HAPPENS = (
    "opened", "full", "refused", "resync",
    "answered", "left", "bytes", "time", "slow", "stopped", "failed",
)  # fmt: skip
counts: Counter[str] = Counter()


class Refused(Exception):
    """The error that refuses a browser's connection. ``status`` is the HTTP status of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Message:
    """One message to a browser.

    ``event`` is ``ready``, ``message`` (a row of a fact), ``resync`` or ``beat``. After this message the browser has
    every fact up to ``token``. ``token`` is empty if it is the same as in the last message. If a fact has several rows,
    only the message with its last row has a token. So a browser that loses its connection between two rows gets the
    whole fact again.
    """

    event: str
    data: str
    token: str = ""

    @property
    def ends_a_fact(self) -> bool:
        """False if this message is a row of a fact and further rows of the same fact follow, else true."""
        return bool(self.token) or self.event != "message"


class BrowserStream:
    """The declaration of a stream for browsers: its permission check, its rendering and its filter."""

    def __init__(self, stream: Stream, allow: Allow, render: Render | None, only: Only | None, beat: float) -> None:
        if not callable(allow):
            raise TypeError(
                f"Stream {stream.name}: allow={allow!r} is no function. Give one that takes the request and returns "
                f"true if it may have the stream."
            )
        if render is None and not stream.has_named_rows:
            raise TypeError(f"Stream {stream.name}: its rows have no names. Give render=, a function of a fact.")
        if beat <= 0:
            raise ValueError(f"Stream {stream.name}: beat={beat!r} is no time; give seconds.")
        self.stream = stream
        self.only = only
        self.beat = beat
        self._allow = allow
        self._render: Render = render or (lambda fact: row_of(stream, fact))
        self.log_at = 0.0

    async def is_allowed(self, request: HttpRequest) -> bool:
        try:
            if inspect.iscoroutinefunction(self._allow):
                return bool(await self._allow(request))
            found = await CHECKS.run(self._allow, request)
            return bool(await found if inspect.isawaitable(found) else found)
        except PermissionDenied:
            return False

    def text(self, fact: Any) -> str:
        """Returns the rendered text of a fact.

        Stores the text on the object ``fact``, which all clients share. So each fact is rendered only once.
        """
        texts: dict[BrowserStream, str] = fact.__dict__.setdefault("_browser_texts", {})
        if self not in texts:
            texts[self] = self.as_text(self._render(fact))
        return texts[self]

    def as_text(self, found: Any) -> str:
        """Returns what ``render`` returned as a text: a text as it is, any other value as JSON."""
        return found if isinstance(found, str) else json_of(found)


class BrowserClient:
    """One connection of a browser to a stream. It produces the messages to send."""

    def __init__(self, source: BrowserStream, request: HttpRequest) -> None:
        self.is_ended = False
        self._source = source
        self._request = request
        self._using = source.stream.database
        self._listener: Listener | None = None
        self._token = ""
        self._resync: Exception | None = None

    async def open(self) -> Self:
        """Counts and starts the client. Raises ``Refused`` if its request may not read the stream, or not at present."""
        limit, source, has_started = stream_settings().browser_limit, self._source, False
        if len(_clients) >= limit:
            counts["full"] += 1
            if (now := time.monotonic()) >= source.log_at:
                source.log_at = now + LOG_SECONDS
                log.warning("browsers.full", stream=source.stream.name, limit=limit)
            raise Refused(503, "Too many browsers at once.")
        _clients.add(self)  # before the first await: else many requests would pass the limit at once
        try:
            if not await source.is_allowed(self._request):
                raise Refused(403, "This stream is not for you.")
            await self.start()
            has_started = True
        except TokenError as error:
            raise Refused(400, str(error)) from None
        except driver.database_lost as error:
            raise Refused(503, await CHECKS.run(sentence_for, self._request, error)) from None
        finally:
            if not has_started:
                self.end("refused")
        counts["opened"] += 1
        return self

    async def start(self) -> None:
        """Makes the client begin after the token in the header ``Last-Event-ID``, or else after the token ``?after=``.

        Without both tokens the client begins at the stream's present end. If the database was restored since the token
        was made, the client begins at the present end, too, with a message ``resync``. Raises ``TokenError`` for any
        other token that cannot be used.
        """
        after = self._request.headers.get("Last-Event-ID") or self._request.GET.get("after") or None
        try:
            self._token = await READS.run(self._checked, after)
        except EpochChanged as error:
            self._resync = error
            self._token = await READS.run(self._checked, None)

    def _checked(self, after: str | None) -> str:
        """Returns ``after`` if it is a valid token, or the token of the stream's present end if ``after`` is None.

        Raises ``EpochChanged`` for a token of another epoch, and ``TokenError`` for any other token that cannot be
        used.
        """
        with limited_waits(self._using):
            if after is None:
                return end_token(self._source.stream, self._using)
            position_of(self._source.stream, after, self._using)
        return after

    async def parts(self, encode: Callable[[Message], Part]) -> AsyncGenerator[Part, None]:
        """Yields the messages to the browser, each encoded by ``encode``.

        After the last message, the browser can connect again with the last token that it received. If the caller does
        not request the next message in time, the caller's task is cancelled, because the browser does not read.
        """
        limits, loop = stream_settings(), asyncio.get_running_loop()
        # A random time: after a restart of the server all browsers connect at once, and must not all reconnect at once later.
        due = time.monotonic() + limits.browser_answer_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
        left = limits.browser_answer_bytes
        leave_the_requests_thread(self._request)
        READS.use_for_request()
        try:
            async with aclosing(self._messages()) as messages:
                async for message in messages:
                    part = encode(message)
                    left -= len(part)
                    timer = loop.call_later(limits.send_stall_limit_seconds, self._too_slow, asyncio.current_task())
                    try:
                        yield part
                    finally:
                        timer.cancel()
                    if message.ends_a_fact and left <= 0:
                        self.end("bytes")
                    elif message.ends_a_fact and time.monotonic() > due:
                        self.end("time")
                    if self.is_ended:
                        return
        except driver.database_lost:
            self.end("failed")
        except Exception:  # an error in ``render`` or ``only``. The browser reconnects, after longer and longer pauses
            log.exception("browsers.failed", stream=self._source.stream.name, after=self._token)
            self.end("failed")
        finally:
            self.end("left")

    def end(self, reason: str) -> None:
        """Ends the client, and counts ``reason``. The generator ``parts`` stops, even while it waits for a fact."""
        if not self.is_ended:
            self.is_ended = True
            counts[reason] += 1
            _clients.discard(self)
            if self._listener is not None:
                self._listener.close()

    def _too_slow(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None and not self.is_ended:
            self.end("slow")
            task.cancel()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        yield Message("ready", json_of({"after": self._token, "beat": self._source.beat}), self._token)
        while not self.is_ended:
            if self._resync is not None:
                counts["resync"] += 1
                reason = "restored" if isinstance(self._resync, EpochChanged) else "trimmed"
                yield Message("resync", json_of({"reason": reason, "after": self._token}), self._token)
            try:
                async with aclosing(self._facts()) as messages:
                    async for message in messages:
                        yield message
            except (EpochChanged, ResyncNeeded) as error:
                # The new token is read before the message ``resync`` is sent. So the browser loads its state from the
                # tables after that, and finds every fact up to the token. The facts after the token are sent.
                self._resync = error
                self._token = await READS.run(self._checked, None)

    async def _facts(self) -> AsyncGenerator[Message, None]:
        stream, only, beat = self._source.stream, self._source.only, self._source.beat
        sent, sent_at, rows = self._token, time.monotonic(), list[str]()
        async with stream.listen(after=self._token, beat=beat, using=self._using) as listener:
            self._listener = listener
            listener.begin_at_known_end()
            if self.is_ended:  # while the listener was opened
                return
            async for fact in listener:
                if fact is not None:
                    if only is None or only(self._request, fact):
                        rows.append(self._source.text(fact))
                    if listener.is_within_fact:
                        continue
                    self._token = fact.token
                    for text in rows[:-1]:
                        yield Message("message", text)
                    if rows:
                        yield Message("message", rows[-1], self._token)
                        sent, sent_at, rows = self._token, time.monotonic(), []
                # A beat is sent even if facts come all the time, because ``only`` may leave out all these facts.
                if fact is None or time.monotonic() - sent_at >= beat:
                    yield Message("beat", "{}", "" if sent == self._token else self._token)
                    sent, sent_at = self._token, time.monotonic()


def open_clients() -> int:
    return len(_clients)


def end_all() -> None:
    """Ends all clients of this process, because the process stops. Their browsers then connect to another process."""
    for client in list(_clients):
        client.end("stopped")


def json_of(value: Any) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"), ensure_ascii=False)
