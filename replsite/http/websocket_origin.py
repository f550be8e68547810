"""Checks the origin of a WebSocket: the page must have the same scheme, host and port as the WebSocket.

Cookies ignore ports. Without this check, a page of another program on the same host could open the WebSocket with the
viewer's session. The scheme is compared, too, because a page that came over plain HTTP may have been changed on the way.
Origins in ``CSRF_TRUSTED_ORIGINS`` (``REPLSITE_TRUSTED_ORIGINS``) are accepted, too. Such origins are needed behind a
proxy that changes the host, or that is not configured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import validate_host
from django.utils.http import is_same_domain

__all__ = ["SameOrigin", "is_same_origin"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
#: The scheme of pages for each scheme of WebSockets.
_OF_PAGES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_LOCAL_HOSTS = [".localhost", "127.0.0.1", "[::1]"]
Application = Callable[..., Awaitable[Any]]


class SameOrigin:
    """ASGI middleware that refuses WebSockets from other origins, and WebSockets without an origin."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        scheme = _OF_PAGES.get(scope.get("scheme", "ws"), "http")
        if is_same_origin(headers.get(b"origin", ""), headers.get(b"host"), scheme):
            return await self._application(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def is_same_origin(origin: str, host: str | None, scheme: str) -> bool:
    """Returns true if a page of that origin may open a WebSocket to that host over that scheme.

    ``origin`` and ``host`` are the request headers. ``scheme`` is http or https.
    """
    try:
        found = urlsplit(origin)
        wanted = urlsplit(f"//{host}" if host is not None else f"//{found.netloc}")
        if found.scheme not in _DEFAULT_PORTS or not found.hostname:
            return False
        if _is_trusted(found, settings.CSRF_TRUSTED_ORIGINS):
            return True
        if found.scheme != scheme:
            return False
        same_host = found.hostname == wanted.hostname and _port(found, found.scheme) == _port(wanted, found.scheme)
    except ValueError:  # an invalid port or address
        return False
    name = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
    allowed = settings.ALLOWED_HOSTS or (_LOCAL_HOSTS if settings.DEBUG else [])
    return same_host and validate_host(name, allowed)


def _port(found: SplitResult, scheme: str) -> int:
    return found.port or _DEFAULT_PORTS[scheme]


def _is_trusted(origin: SplitResult, trusted: Iterable[str]) -> bool:
    """Returns true if the origin is listed, exactly or by a pattern such as ``https://*.example.com``."""
    for one in map(urlsplit, trusted):
        name = (one.hostname or "").lstrip("*")
        same_port = _port(one, one.scheme) == _port(origin, origin.scheme) if one.scheme in _DEFAULT_PORTS else False
        if one.scheme == origin.scheme and same_port and is_same_domain(origin.hostname or "", name):
            return True
    return False
