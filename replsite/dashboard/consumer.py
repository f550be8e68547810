"""Serves the WebSocket of the live page: for staff only, one message per request.

The browser sends ``{"have": n}`` with the number of the page that the browser shows, or with 0 if it shows no page. As
soon as there is a newer page, the server sends the changes from the shown page to the newest one, as compressed JSON in
one binary message. A hidden tab sends no requests. Nothing is sent without a request, so a client that never reads fills
no buffer. A client that sends too many requests, or anything else, is disconnected.

``replsite.metrics.live_page.Closing`` lists the reasons for closing with their codes. Every close is counted by its
reason. The HTTP server closes the connection of a client that sends requests and never reads
(``streams.replication.transport.http_limits``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from importlib import import_module
from typing import Any

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import Error as DatabaseError
from structlog.contextvars import bind_contextvars

from replsite.dashboard.fragments import rights_of
from replsite.dashboard.tick_feed import feed_of_this_loop
from replsite.metrics.live_page import Closing, closed
from streams.runtime.logs import get_logger

__all__ = ["LiveConsumer"]

log = get_logger(__name__)
LONGEST_MESSAGE = 200
MOST_MESSAGES_PER_SECOND = 10
#: Interval at which a viewer's rights are read again. Then a viewer that logged out or is no longer staff is
#: disconnected, and changed permissions take effect.
RECHECK_SECONDS = 30.0


class LiveConsumer(AsyncWebsocketConsumer):
    """The WebSocket connection of one viewer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent = 0
        self._answer: asyncio.Task[None] | None = None
        self._second = 0.0
        self._messages = 0
        self._check_due = 0.0
        self._rights: frozenset[str] = frozenset()
        self._is_ended = False

    async def connect(self) -> None:
        """Accepts staff, and closes the connection of any other user."""
        refused = _refusal(self.scope.get("user"))
        if refused is not None:
            await self._end(refused)
            return
        bind_contextvars(user=str(self.scope["user"]), address="{}:{}".format(*(self.scope.get("client") or ("", ""))))
        await self.accept()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Starts the answer to a request.

        Closes the connection after a message that is no request, or after too many requests in a second.
        """
        if self._is_ended:
            return
        if not self._within_rate():
            await self._end(Closing.FLOOD)
            return
        have = _parse(text_data)
        if have is None:
            await self._end(Closing.NOT_UNDERSTOOD)
            return
        if self._answer is not None and not self._answer.done():
            return  # a second request while the first is being answered: one answer serves both
        self._answer = asyncio.create_task(self._give_answer(have))

    async def disconnect(self, code: int) -> None:
        """Cancels the wait for the next page."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.cancel()
            await asyncio.wait([answer])  # unlike awaiting the task, this does not raise its error

    async def _give_answer(self, have: int) -> None:
        """Sends the answer to one request. If the sending fails, closes the connection, so that the browser connects again.

        Often the sending fails only because the connection has ended already.
        """
        try:
            await self._send_next(have)
        except Exception as error:  # noqa: BLE001 - each server has its own error for a connection that has ended
            log.info("live.not_answered", error=repr(error))
            with contextlib.suppress(Exception):
                await self._end(Closing.FAILED)

    async def _end(self, why: Closing) -> None:
        """Closes the connection and counts the close. Further calls do nothing.

        Several calls are usual, because a client may send more bad messages before it receives the close.
        """
        if not self._is_ended:
            self._is_ended = True
            closed[why.label] += 1
            await self.close(code=why.value)

    async def _send_next(self, have: int) -> None:
        refused = await self._check()
        if refused is not None:
            await self._end(refused)
            return
        feed = feed_of_this_loop()
        tick = await feed.after(self._sent)
        # Changes refer to the page that this connection sent last. If the browser names any other, it gets a whole page.
        await self.send(bytes_data=feed.message(have if have == self._sent else 0, tick, self._rights))
        self._sent = tick.number

    async def _check(self) -> Closing | None:
        """Returns the reason to disconnect the viewer, or None if the viewer may go on.

        Reads the viewer's rights at the first request, then at intervals. Also returns None if the database cannot be read.
        """
        if time.monotonic() < self._check_due:
            return None
        try:
            user = await self._user()
            refused = _refusal(user)
            rights = self._rights if refused else await database_sync_to_async(rights_of)(user)
        except DatabaseError:  # the rights are unknown while the database cannot be read; the next request checks again
            return None
        self._check_due = time.monotonic() + RECHECK_SECONDS
        if rights != self._rights:
            self._rights, self._sent = rights, 0  # the page on the screen was rendered for other rights: send it whole
        return refused

    async def _user(self) -> Any:
        """Returns the user of the viewer's session, as the session is stored now.

        The ASGI scope holds the session only as it was at the handshake.
        """
        if "session" not in self.scope:
            return self.scope["user"]
        session = import_module(settings.SESSION_ENGINE).SessionStore(self.scope["session"].session_key)
        return await get_user({**self.scope, "session": session})

    def _within_rate(self) -> bool:
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._messages = now, 0
        self._messages += 1
        return self._messages <= MOST_MESSAGES_PER_SECOND


def _refusal(user: Any) -> Closing | None:
    """Returns the reason to refuse this user, or None for active staff."""
    if user is None or not user.is_authenticated:
        return Closing.ANONYMOUS
    return None if user.is_active and user.is_staff else Closing.NO_STAFF


def _parse(text: str | None) -> int | None:
    """Returns the number in ``{"have": n}``, or None if the message is anything else or too long."""
    if text is None or len(text) > LONGEST_MESSAGE:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    have = said.get("have") if isinstance(said, dict) else None
    # JSON's true is a bool, and Python's bool is an int.
    return have if isinstance(have, int) and not isinstance(have, bool) and have >= 0 else None
