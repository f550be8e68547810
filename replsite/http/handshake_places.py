"""Limits the number of WebSocket handshakes that are read from the database at a time.

Channels reads the session and the user of each handshake in one thread for the whole process, one after another. So a
crowd with made-up cookies kept viewers out for half a minute.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import ThreadSensitiveContext
from channels.auth import AuthMiddlewareStack

from replsite.http.request_places import Application, Busy, PlacePool, Refusals, show_in_metrics, when_idle
from streams.replication.protocol.access import address_key

__all__ = ["HandshakePlaces"]


class HandshakePlaces:
    """ASGI middleware for WebSockets that puts the user of the session's cookie into the scope, as Channels' middleware does.

    To read the user, a handshake needs a place. So a crowd with made-up cookies opens few database connections. A
    handshake without a place is refused, and the browser tries again.
    """

    def __init__(self, application: Application, places: int = 4) -> None:
        self._application = application
        self._places = PlacePool("handshakes", places, 200)
        self._refusals = Refusals()
        show_in_metrics([self._places])

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        client = address_key((scope.get("client") or [""])[0])
        try:
            place = await self._places.enter(client)
        except Busy as busy:
            self._refusals.log(scope, busy)
            await send({"type": "websocket.close"})
            return None
        found: list[dict[str, Any]] = []

        async def keep(with_user: dict[str, Any], receive: Any, send: Any) -> None:
            found.append(with_user)

        try:
            async with ThreadSensitiveContext(executor=place.executor):
                await AuthMiddlewareStack(keep)(scope, receive, send)
        finally:
            when_idle(place, lambda: self._places.leave(place, client))
        return await self._application(found[0], receive, send)
