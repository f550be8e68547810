"""A Django view that speaks the Durable Streams protocol for reading, so that its published clients can read a stream.

The protocol is described at https://github.com/durable-streams/durable-streams. A client reads what is there page by
page, then waits for more by long polls or by server-sent events. It names the place from which it reads by an *offset*,
which each response gives it. Permissions, rendering, limits and listeners are the same as in ``streams.browsers.view``.

An offset is a token in another form: the epoch, then the position with leading zeros (``k3xw5q9apm_0000000000000000004``).
So the offsets of an epoch sort as texts. An offset of another epoch, or of facts that were trimmed, gets status 410.

A *cursor* is a number that a waiting client sends with its next request. It only makes the addresses of requests differ
over time, so that no cache can answer for ever.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response

from streams import epochs
from streams.browsers.clients import Allow, BrowserClient, BrowserStream, Message, Refused, Render, json_of
from streams.browsers.threads import READS
from streams.browsers.view import EventsResponse, async_view
from streams.conf import stream_settings
from streams.db.consistent_read import limited_waits
from streams.errors import EpochChanged, ResyncNeeded, TokenError
from streams.waiting.listen import read_after, shared_read, was_end
from streams.waiting.pages import Page, end_token

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase

    from streams.stream_object import Stream

_OFFSET = re.compile(r"(?:([a-z0-9]{1,40})_)?([0-9]{19})")
#: The offsets that the protocol reserves: before the first fact, and after the last one.
_BEGINNING, _NOW = "-1", "now"
_MODES = ("", "long-poll", "sse")
#: Cursors count intervals from a moment that the protocol names, and go ahead of the clock by an hour at most at a time.
_CURSORS_BEGIN = datetime(2024, 10, 9, tzinfo=UTC).timestamp()
_CURSOR_SECONDS = 20
_CURSOR = re.compile(r"[0-9]{1,15}")
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
#: The protocol's advice for pages that never change. It bounds how long a page of an older ``render`` is still used.
_HISTORY = "max-age=60, stale-while-revalidate=300"


def durable(
    stream: Stream,
    *,
    allow: Allow,
    render: Render | None = None,
    beat: float = 15.0,
    content_type: str = "application/json",
    public: bool = False,
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Returns a view for ``urlpatterns`` that lets clients of the Durable Streams protocol read the stream.

    ``allow(request)`` returns true if the request may read the stream. Otherwise the request gets status 403. ``allow``
    may be synchronous or asynchronous. ``render(fact)`` returns a value that is sent as JSON. Without ``render``, each
    row is sent as a JSON object of its fields. With another ``content_type``, texts from ``render`` are sent as they
    are, one after the other. ``render`` runs in the event loop, so it must not make queries.

    A long poll without a fact ends after ``beat`` seconds. With ``public=True``, shared caches may keep pages of
    history, and may send them without asking ``allow``. The view needs an ASGI server. Raises ``TypeError`` if
    ``allow`` is not a function.
    """
    source = _DurableStream(stream, allow, render, beat, content_type, "public" if public else "private")

    async def answer(request: HttpRequest) -> HttpResponseBase:
        client = await _DurableClient(source, request).open()
        if client.mode == "sse":
            return EventsResponse(client, client.parts(client.events))
        try:
            return await client.answer()
        finally:
            client.end("left")

    return async_view(stream, ["GET", "HEAD"], answer, _HEADERS)


class _DurableStream(BrowserStream):
    """The declaration of a stream for clients of the protocol."""

    def __init__(
        self, stream: Stream, allow: Allow, render: Render | None, beat: float, content_type: str, scope: str
    ) -> None:
        super().__init__(stream, allow, render, None, beat)
        self.content_type = content_type
        self.scope = scope
        kind = content_type.partition(";")[0].strip().lower()
        self.is_json = kind == "application/json"
        self.has_events = self.is_json or kind.startswith("text/")

    def as_text(self, found: Any) -> str:
        return json_of(found) if self.is_json else super().as_text(found)

    def join(self, texts: list[str]) -> str:
        return f"[{','.join(texts)}]" if self.is_json else "".join(texts)


class _DurableClient(BrowserClient):
    """A request of the protocol."""

    _source: _DurableStream

    def __init__(self, source: _DurableStream, request: HttpRequest) -> None:
        super().__init__(source, request)
        self.mode = request.GET.get("live", "") if request.method == "GET" else ""
        self._offset = _BEGINNING
        self._texts: list[str] = []
        self._left = stream_settings().browser_answer_bytes
        self._at_end = self._is_answered = self._is_lost = False
        self._cursor = _next_cursor(request.GET.get("cursor", ""))

    async def start(self) -> None:
        """Reads the first page after the offset of the request."""
        offsets = self._request.GET.getlist("offset")
        if self.mode not in _MODES or len(offsets) > 1 or (self.mode and not offsets):
            raise Refused(400, "Give ?offset= once, and live= only with it: long-poll or sse.")
        if self.mode == "sse" and not self._source.has_events:
            raise Refused(400, f"{self._source.content_type} cannot be sent as server-sent events.")
        if self._request.method == "HEAD":
            offsets = [_NOW]
        self._offset = offsets[0] if offsets else _BEGINNING
        if self._offset not in (_BEGINNING, _NOW):
            self._token = _token_of(self._offset)
        if self.mode == "long-poll" and was_end(self._source.stream, self._token, self._using):
            self._at_end = True
            return
        try:
            page = await self._page()
        except (EpochChanged, ResyncNeeded) as error:
            raise Refused(410, str(error)) from None
        for fact in page.facts:
            if self._left <= 0 and fact.token != self._token:
                return
            self._add(self._source.text(fact))
            self._token = fact.token
        self._token, self._at_end = page.next, page.at_end

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self._left -= len(text)

    async def _page(self) -> Page:
        stream, using = self._source.stream, self._using
        if self._offset == _NOW:
            return Page([], await READS.run(self._limited, end_token, stream, using), at_end=True)
        read = partial(READS.run, self._limited, read_after, stream, self._token or None, using)
        # What a page says is the end is true when it is asked for, so it is not that of a read before.
        page, _ = await (shared_read(stream, self._token, using, read) if self.mode else read())
        return page

    def _limited(self, read: Callable[..., Any], *arguments: Any) -> Any:
        with limited_waits(self._using):
            return read(*arguments)

    # --- one answer -----------------------------------------------------------------------------------------------

    async def answer(self) -> HttpResponse:
        """Returns the page that was read first. A long poll waits for facts if there are none."""
        if self.mode and not self._texts:
            await asyncio.create_task(self._wait())  # a task of its own, because ``parts`` changes its context
        self.end("answered")
        has_nothing = bool(self.mode) and not self._texts
        headers = {"Stream-Next-Offset": _offset_of(self._token), "Cache-Control": self._cache_control()}
        if self._source.scope == "private":  # else a browser's cache gives one user what it kept of another
            headers["Vary"] = "Authorization, Cookie"
        if self._at_end or has_nothing:
            headers["Stream-Up-To-Date"] = "true"
        if self.mode:
            headers["Stream-Cursor"] = str(self._cursor)
        if has_nothing:
            return HttpResponse(status=204, headers=headers)
        body = b"" if self._request.method == "HEAD" else self._source.join(self._texts).encode()
        response = HttpResponse(body, self._source.content_type, headers=headers)
        if self._offset == _NOW:
            return response
        seen = [headers["Stream-Next-Offset"].encode(), b"%d" % self._at_end, body]
        etag = f'"{blake2b(b" ".join(seen), digest_size=16).hexdigest()}"'
        response.headers["ETag"] = etag
        found = get_conditional_response(self._request, etag=etag, response=response) or response
        for name, value in headers.items():  # also in an answer without a body
            found.headers[name] = value
        return found

    def _cache_control(self) -> str:
        if self._offset == _NOW or (self.mode and not self._texts):
            return "no-store"
        # An answer from the beginning changes with a restore or a trimming, and one at the end with the next fact. The
        # address of a long poll changes with its cursor, so its answer may be kept.
        if self._offset == _BEGINNING or (self._at_end and not self.mode):
            return f"{self._source.scope}, no-cache"
        return f"{self._source.scope}, {_HISTORY}"

    async def _wait(self) -> None:
        async for _ in self.parts(self._poll):
            pass
        if self._is_lost:
            raise Refused(410, "Facts after this offset are gone.")
        if not self._is_answered:
            raise Refused(503, "Ask again.")

    def _poll(self, message: Message) -> str:
        """Ends the client if its answer is complete."""
        if self._keep(message) and message.event != "ready":
            self._is_answered = True
            self.end("answered")
        return message.event

    def _keep(self, message: Message) -> bool:
        """Keeps a row for the answer. Returns true if the rows of all facts that were read so far are kept, or are enough."""
        if message.event == "message":
            self._add(message.data)
        elif message.event == "resync":  # the client asks again, and then gets status 410
            self._is_lost = True
            self.end("failed")
        if self._listener is None:
            return True
        self._at_end = self._listener.is_at_end
        return message.ends_a_fact and (not self._listener.has_facts or self._left <= 0)

    # --- events ---------------------------------------------------------------------------------------------------

    def events(self, message: Message) -> bytes:
        """Returns the server-sent events for a message. Those for the message ``ready`` have the first page."""
        if not self._keep(message) or self._is_lost:
            return b""
        texts, self._texts = self._texts, []
        control = _control(self._token, self._cursor, self._at_end)
        self._cursor = max(self._cursor, _cursor_now())
        return (_event("data", self._source.join(texts)) if texts else b"") + control


@lru_cache(maxsize=16)  # clients at the same place get the same
def _control(token: str, cursor: int, at_end: bool) -> bytes:
    control: dict[str, Any] = {"streamNextOffset": _offset_of(token), "streamCursor": str(cursor)}
    if at_end:
        control["upToDate"] = True
    return _event("control", json_of(control))


def _event(name: str, text: str) -> bytes:
    # Without a space after the colon, as the protocol's tests want it: so the first space of a line needs one before it. CR is
    # an end of a line, too.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    data = "".join(f"data:{' ' if line.startswith(' ') else ''}{line}\n" for line in lines)
    return f"event: {name}\n{data}\n".encode()


def _offset_of(token: str) -> str:
    position, word = epochs.unstamp(token)
    return f"{word}_{int(position):019d}" if word else f"{int(position):019d}"


def _token_of(offset: str) -> str:
    found = _OFFSET.fullmatch(offset)
    if found is None:
        raise TokenError(f"Offset {offset[:100]!r} cannot be read.")
    return epochs.stamp(str(int(found[2])), found[1] or "")


def _cursor_now() -> int:
    return int(time.time() - _CURSORS_BEGIN) // _CURSOR_SECONDS


def _next_cursor(given: str) -> int:
    """Returns the present cursor, or one above the cursor that the client has, if that is not lower."""
    now = _cursor_now()
    if not _CURSOR.fullmatch(given) or int(given) < now:
        return now
    return int(given) + max(1, random.randint(1, 3_600) // _CURSOR_SECONDS)  # noqa: S311 - no secret
