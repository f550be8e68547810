"""A consumer of Django Channels that sends the facts of a stream to browsers over a WebSocket.

Permissions, rendering, limits and tokens are the same as in ``streams.browsers.view``. Each message is a JSON object
with three members, all texts: ``event`` is its type, ``id`` is a token or empty, and ``data`` is its content.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.handlers.asgi import ASGIRequest

from streams.browsers.clients import Allow, BrowserClient, BrowserStream, Message, Only, Refused, Render
from streams.browsers.threads import READS
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from streams.stream_object import Stream

log = get_logger(__name__)
#: The WebSocket of a refused browser is closed with the code of this number plus the HTTP status of the refusal.
REFUSED = 4000
_ENDED, _TOO_SLOW = 1000, 1008


def stream_consumer(
    stream: Stream, *, allow: Allow, render: Render | None = None, only: Only | None = None, beat: float = 15.0
) -> type[AsyncWebsocketConsumer]:
    """Returns a consumer class of Channels that sends the stream's facts, each once it is complete.

    Pass the ``as_asgi()`` of the class to a ``URLRouter``. The arguments are those of ``streams.stream_view``.
    ``allow`` and ``only`` get a request with the address, headers and cookies of the handshake. Inside of
    ``AuthMiddlewareStack`` this request has ``user`` and ``session``. A browser passes its token as ``?after=``. If a
    browser is refused, the WebSocket is closed with the code 4000 plus the HTTP status that the view would return.
    Pages of hosts that are not in ``ALLOWED_HOSTS`` are refused.
    """
    source = BrowserStream(stream, allow, render, only, beat)
    return type("StreamConsumer", (_StreamConsumer,), {"source": source})


class _StreamConsumer(AsyncWebsocketConsumer):
    """The WebSocket of one browser. Messages from the browser are ignored."""

    source: ClassVar[BrowserStream]
    channel_layer_alias = ""  # none is needed

    @classmethod
    def as_asgi(cls, **initkwargs: Any) -> Any:
        """Returns the ASGI application of the class. It refuses pages of other sites, which it detects by the header ``Origin``.

        Without this check, a page of any site could open the WebSocket with the cookies of the browser's user.
        """
        return AllowedHostsOriginValidator(super().as_asgi(**initkwargs))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sending: asyncio.Task[None] | None = None
        self._has_left = False

    async def connect(self) -> None:
        """Begins to send facts. If the browser is refused, closes the WebSocket with the code of the refusal."""
        try:
            client = await BrowserClient(self.source, _request(self.scope)).open()
        except Refused as refused:
            await self.accept()  # a browser gets the close code only of a WebSocket that was accepted
            await self.close(code=REFUSED + refused.status)
            return
        await self.accept()
        self._sending = asyncio.create_task(self._send(client))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Ignores a message from the browser."""

    async def disconnect(self, code: int) -> None:
        self._has_left = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    async def _send(self, client: BrowserClient) -> None:
        # Channels calls the synchronous code of all WebSockets in one thread, such as the lookups of sessions at handshakes.
        READS.use()
        try:
            async with aclosing(client.parts(_frame)) as parts:
                async for part in parts:
                    await self.send(text_data=part)
            await self.close(code=_ENDED)
        except asyncio.CancelledError:
            if self._has_left:
                raise
            await self.close(code=_TOO_SLOW)
        except Exception as error:  # noqa: BLE001 - each server has its own error for a connection that has ended
            log.info("browsers.not_sent", error=repr(error))


def _request(scope: dict[str, Any]) -> ASGIRequest:
    scheme = "https" if scope.get("scheme") == "wss" else "http"
    request = ASGIRequest({**scope, "type": "http", "method": "GET", "scheme": scheme}, BytesIO())
    for name in ("user", "session"):
        if name in scope:
            setattr(request, name, scope[name])
    return request


def _frame(message: Message) -> str:
    return json.dumps({"event": message.event, "id": message.token, "data": message.data}, separators=(",", ":"))
