"""A Django view that sends the facts of a stream to browsers as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, StreamingHttpResponse

from streams.browsers.clients import Allow, BrowserClient, BrowserStream, Message, Only, Refused, Render

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase

    from streams.stream_object import Stream

#: A browser connects again after this time. The browser may wait longer.
RETRY_MILLISECONDS = 1_000
#: A browser that was refused because there were too many tries again after this time.
BUSY_SECONDS = 5
_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "Content-Encoding": "identity",  # without this, GZipMiddleware would hold facts back until its buffer is full
    "X-Accel-Buffering": "no",  # without this, nginx would do the same
}


def stream_view(
    stream: Stream, *, allow: Allow, render: Render | None = None, only: Only | None = None, beat: float = 15.0
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Returns a view for ``urlpatterns`` that sends the stream's facts as server-sent events, each once it is complete.

    ``allow(request)`` returns true if the request may read the stream. Otherwise the request gets status 403. ``allow``
    may be synchronous or asynchronous. ``render(fact)`` returns a text to send, or a value that is sent as JSON.
    Without ``render``, each row is sent as a JSON object of its fields. With ``only``, a fact is sent to a browser only
    if ``only(request, fact)`` returns true. ``render`` and ``only`` run in the event loop, so they must not make
    queries.

    A browser gets the facts after the token in its header ``Last-Event-ID``. Without this header it begins after the
    token ``?after=``. Without both tokens it begins at the stream's present end. The view needs an ASGI server. Raises
    ``TypeError`` if ``allow`` is not a function.
    """
    source = BrowserStream(stream, allow, render, only, beat)

    async def answer(request: HttpRequest) -> HttpResponseBase:
        client = await BrowserClient(source, request).open()
        return EventsResponse(client, _events(client))

    return async_view(stream, ["GET"], answer)


def async_view(
    stream: Stream,
    methods: list[str],
    answer: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Returns a view that answers requests of these methods by ``answer``, which may raise ``Refused``.

    ``headers`` are those of every response, also of a refusal.
    """

    async def view(request: HttpRequest) -> HttpResponseBase:
        if not isinstance(request, ASGIRequest):
            raise ImproperlyConfigured(
                f"The view of stream {stream.name} was called under WSGI, where each browser would take a thread for as "
                f"long as its page is open. Serve the project by ASGI (daphne, uvicorn; 'daphne' before 'staticfiles' in "
                f"INSTALLED_APPS does it for runserver), and test the view with AsyncClient."
            )
        response: HttpResponseBase = HttpResponseNotAllowed(methods)
        if request.method in methods:
            try:
                response = await answer(request)
            except Refused as refused:
                response = _refusal(refused)
        for name, value in headers.items():
            response.headers[name] = value
        return response

    for alias in connections:  # a transaction would stay open for as long as the page, so Django refuses async views
        transaction.non_atomic_requests(using=alias)(view)
    view.csrf_exempt = True  # type: ignore[attr-defined]  # it only reads: another method gets 405, and not a page about cookies
    return view


class EventsResponse(StreamingHttpResponse):
    """The response to one browser. Closing the response also ends its ``BrowserClient``, even if nothing was sent."""

    def __init__(self, client: BrowserClient, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, content_type="text/event-stream", headers=_HEADERS)
        self._client = client

    def close(self) -> None:
        self._client.end("left")
        super().close()


async def _events(client: BrowserClient) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    async for part in client.parts(event_of):
        yield part


def event_of(message: Message) -> bytes:
    """Returns a message encoded as one server-sent event."""
    lines = [] if message.event == "message" else [f"event: {message.event}"]
    lines += [f"id: {message.token}"] if message.token else []
    lines += [f"data: {line}" for line in message.data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


def _refusal(refused: Refused) -> HttpResponse:
    headers: dict[str, Any] = {"Cache-Control": "no-store"}
    if refused.status == 503:
        headers["Retry-After"] = str(BUSY_SECONDS)
    response: Any = HttpResponse(f"{refused}\n", "text/plain; charset=utf-8", refused.status, headers=headers)
    response._has_been_logged = True  # else Django logs each refusal as an error
    return response
