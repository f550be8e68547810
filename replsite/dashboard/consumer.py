"""The WebSocket of the live page: staff only, one message per question.

The browser says ``{"have": n}``, the number of the page that it shows (0: none); the answer is the next page's changes, once
there is one. A hidden tab does not ask. Nothing is sent unasked, so a client that never reads fills no buffer; one that
asks too often, or says anything else, is closed.

Close codes: 1011 the page could not be sent, 4401 not logged in, 4403 not staff (any more), 4400 not understood, 4429 too
many messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from channels.auth import get_user
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from replsite.dashboard.feed import Tick, feed_of_this_loop, message
from streams.logs import get_logger

__all__ = ["LiveConsumer"]

log = get_logger(__name__)
LONGEST_MESSAGE = 200
MOST_MESSAGES_PER_SECOND = 10
#: A viewer that logs out or loses the staff mark is shut out after this.
RECHECK_SECONDS = 30.0


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """One viewer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent: Tick | None = None
        self._answer: asyncio.Task[None] | None = None
        self._second = 0.0
        self._messages = 0
        self._checked_at = time.monotonic()

    async def connect(self) -> None:
        """Let staff in, nobody else."""
        refused = _refusal(self.scope.get("user"))
        if refused is not None:
            await self.close(code=refused)
            return
        await self.accept()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """A question; anything else closes the connection."""
        if not self._within_rate():
            await self.close(code=4429)
            return
        have = _parse(text_data)
        if have is None:
            await self.close(code=4400)
            return
        if self._answer is not None and not self._answer.done():
            return  # asked twice: one answer is on its way
        self._answer = asyncio.create_task(self._give_answer(have))

    async def disconnect(self, code: int) -> None:
        """Stop waiting for the next page."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.cancel()
            await asyncio.wait([answer])

    async def _give_answer(self, have: int) -> None:
        """An error ends the connection, so that the browser asks anew; often its end is what the error is about."""
        try:
            await self._send_next(have)
        except Exception as error:  # noqa: BLE001 - each server has its own word for a viewer that is gone
            log.info("live.not_answered", error=repr(error))
            with contextlib.suppress(Exception):
                await self.close(code=1011)

    async def _send_next(self, have: int) -> None:
        if not await self._still_staff():
            await self.close(code=4403)
            return
        known = self._sent if self._sent is not None and self._sent.number == have and self._sent.page else None
        tick = await feed_of_this_loop().after(self._sent.number if self._sent else 0)
        await self.send_json(message(known, tick))
        self._sent = tick

    async def _still_staff(self) -> bool:
        now = time.monotonic()
        if now - self._checked_at < RECHECK_SECONDS or "session" not in self.scope:
            return True
        self._checked_at = now
        return _refusal(await get_user(self.scope)) is None

    def _within_rate(self) -> bool:
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._messages = now, 0
        self._messages += 1
        return self._messages <= MOST_MESSAGES_PER_SECOND


def _refusal(user: Any) -> int | None:
    """The code that this user is refused with; None: welcome."""
    if user is None or not user.is_authenticated:
        return 4401
    return None if user.is_active and user.is_staff else 4403


def _parse(text: str | None) -> int | None:
    """The number in ``{"have": n}``; None when it is anything else."""
    if text is None or len(text) > LONGEST_MESSAGE:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    have = said.get("have") if isinstance(said, dict) else None
    return have if isinstance(have, int) and not isinstance(have, bool) and have >= 0 else None
