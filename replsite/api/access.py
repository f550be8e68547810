"""Checks the token of each request to the API: its validity, its number of requests a minute, and its user's permissions.

``log_change`` records the changes that such requests make in the log of Django's admin.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import cleandoc, iscoroutinefunction, signature
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connections
from django.http import HttpRequest
from ninja.errors import AuthenticationError
from ninja.security import HttpBearer
from ninja.throttling import BaseThrottle

from replsite.api.models import ApiToken
from replsite.api.tokens import find_token, reread_token
from replsite.conf import site_settings

T = TypeVar("T")
Operation = TypeVar("Operation", bound=Callable[..., Any])
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
#: The most waiting calls that query at the same time. A call has a database connection while it queries, and none while it
#: waits.
_TURNS = 8
#: Event loop -> the semaphore of its turns. A semaphore belongs to one loop, and a WSGI server makes a loop for each request.
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


class Forbidden(Exception):
    """The error of a request that its token does not allow.

    ``permission`` is the permission that the token's user lacks. It is None if the request is refused for another reason.
    """

    def __init__(self, message: str, permission: str | None = None) -> None:
        super().__init__(message)
        self.permission = permission


class TokenAuth(HttpBearer):
    """The authentication by ``Authorization: Bearer``.

    Raises ``Forbidden`` if a read-only token is used for a request that may change something.
    """

    openapi_name = "token"

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        """Returns the row of the token whose text is ``token``, or None if this token is not valid."""
        return _checked(request, find_token(token))


class WaitingTokenAuth(HttpBearer):
    """The same authentication as ``TokenAuth``, for operations that wait. Their requests keep no database connection."""

    openapi_name = "token"

    async def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        """Returns the row of the token whose text is ``token``, or None if this token is not valid."""
        return _checked(request, await in_turn(lambda: find_token(token)))


def _checked(request: HttpRequest, token: ApiToken | None) -> ApiToken | None:
    if token is not None and token.read_only and request.method not in _READING:
        raise Forbidden("This token may only read. Make one that may change things in the admin.")
    return token


async def in_turn(work: Callable[[], T]) -> T:
    """Runs ``work`` in the request's thread, and returns its result. At most ``_TURNS`` calls run at a time on an event loop.

    After ``work``, the database connections of this thread are closed. The limit is for clients that wait in the server.
    One new fact may wake a hundred such clients at once. Without the limit, their calls would take a hundred database
    connections.
    """

    def call() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_TURNS))
    await turns.acquire()
    working = asyncio.ensure_future(sync_to_async(call)())
    # A client requests a full sync and disconnects. Its thread works on, with its connection, so it keeps its turn.
    # Otherwise a client that does this repeatedly would take a connection each time.
    working.add_done_callback(lambda _: turns.release())
    return await asyncio.shield(working)


def require(request: Any, *permissions: str) -> None:
    """Raises ``Forbidden`` unless the token's user has all these permissions."""
    for permission in permissions:
        if not request.auth.user.has_perm(permission):
            raise Forbidden(f"This needs the permission {permission}.", permission)


def needs(*permissions: str) -> Callable[[Operation], Operation]:
    """Returns a decorator. The decorated operation refuses requests without these permissions, and its docstring names them.

    So OpenAPI and the page about the API show these permissions. The docstring in the source names only further
    permissions, which depend on the request.
    """
    words = " and ".join(f"`{permission}`" for permission in permissions)
    noun = "Permission" if len(permissions) == 1 else "Permissions"

    def decorate(operation: Operation) -> Operation:
        if iscoroutinefunction(operation):

            @wraps(operation)
            async def checked(request: Any, *args: Any, **kwargs: Any) -> Any:
                await in_turn(lambda: require(request, *permissions))
                return await operation(request, *args, **kwargs)

        else:

            @wraps(operation)
            def checked(request: Any, *args: Any, **kwargs: Any) -> Any:
                require(request, *permissions)
                return operation(request, *args, **kwargs)

        # Annotations are texts that only the operation's own module can read.
        checked.__signature__ = signature(operation, eval_str=True)  # type: ignore[attr-defined]
        checked.__doc__ = f"{cleandoc(operation.__doc__ or '')}\n\n{noun}: {words}."
        return cast("Operation", checked)

    return decorate


def check_again(request: Any, *permissions: str) -> None:
    """Reads the request's token again. Raises ``AuthenticationError`` if the token is not valid any more.

    Raises ``Forbidden`` if the token's user lacks one of the permissions now.
    """
    request.auth = reread_token(request.auth)
    if request.auth is None:
        raise AuthenticationError
    require(request, *permissions)


def log_change(request: Any, about: Any, text: str) -> None:
    """Adds an entry about the object ``about`` to the admin's log: ``text``, and the name of the request's token."""
    text = f"{text} (API token {request.auth})"
    LogEntry.objects.log_actions(request.auth.user_id, [about], CHANGE, change_message=text, single_object=True)


class RatePerToken(BaseThrottle):
    """Limits the requests of each API token to ``REPLSITE_API_REQUESTS_PER_MINUTE``, as counted in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._spent: dict[int, tuple[float, float]] = {}
        self._of_thread = threading.local()

    def allow_request(self, request: HttpRequest) -> bool:
        """Returns false if the request's token has used up its requests. Otherwise counts this request and returns true."""
        most = site_settings().api_requests_per_minute
        if most <= 0:
            return True
        per_second, now, key = most / 60, time.monotonic(), request.auth.pk  # type: ignore[attr-defined]
        with self._lock:
            spent, at = self._spent.get(key, (0.0, now))
            spent = max(0.0, spent - (now - at) * per_second)
            allowed = spent + 1 <= most
            self._spent[key] = (spent + 1 if allowed else spent, now)
            if len(self._spent) > 1_000:  # those that were idle for a minute have all their requests again
                self._spent = {key: found for key, found in self._spent.items() if now - found[1] < 60}
        # The caller asks ``wait`` next, in the same thread.
        self._of_thread.wait = (spent + 1 - most) / per_second
        return allowed

    def wait(self) -> float | None:
        """Returns the number of seconds after which a refused client may try again.

        Must be called in the thread in which ``allow_request`` has just refused the client's request.
        """
        return max(1.0, self._of_thread.wait)
