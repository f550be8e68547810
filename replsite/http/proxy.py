"""Whom a request comes from when a reverse proxy passed it on, and whether it came to the proxy by HTTPS.

``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed from the networks of ``REPLSITE_PROXY_NETWORKS`` only: anybody else
could write into them what they like. Of several addresses the last one that is no proxy's counts, since what stands before it
was said by the client itself. A proxy that is not named and says HTTPS is told of in the log, once: with
``REPLSITE_HTTPS_ONLY`` all that comes through it is sent to HTTPS, where it came from, for ever.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from streams.runtime.logs import get_logger

__all__ = ["Forwarded", "client_of", "networks_of"]

Application = Callable[..., Awaitable[Any]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
log = get_logger(__name__)
_SECURE = {"http": "https", "websocket": "wss"}
#: So many peers are told of: anybody can claim to be a proxy.
_MOST_TOLD = 10
#: No request comes through more proxies; a header has room for a thousand addresses, and to read them takes longer than the page.
_MOST_PROXIES = 20


class Forwarded:
    """ASGI middleware that puts the client's address and scheme into the scope of what a named proxy passed on."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._networks = networks_of(settings.REPLSITE_PROXY_NETWORKS)
        self._told: set[str] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        peer = (scope.get("client") or [""])[0]
        if self._networks and _is_among(peer, self._networks):
            scope = scope | self._said(scope, peer)
        elif _says_https(scope):
            self._tell(peer)
        return await self._application(scope, receive, send)

    def _tell(self, peer: str) -> None:
        if peer in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(peer)
        do = "if this is your proxy, add its address to REPLSITE_PROXY_NETWORKS"
        if settings.SECURE_SSL_REDIRECT:
            do += "; until then browsers are sent in a circle, as pages are for HTTPS alone"
        log.warning("proxy.not_named", address=peer, do=do)

    def _said(self, scope: dict[str, Any], peer: str) -> dict[str, Any]:
        said = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        client = client_of(peer, said.get(b"x-forwarded-for", ""), self._networks)
        more: dict[str, Any] = {} if client == peer else {"client": [client, 0]}
        if _says_https(scope):
            more["scheme"] = _SECURE[scope["type"]]
        return more


def _says_https(scope: dict[str, Any]) -> bool:
    """Whether the request claims to have come to a proxy by HTTPS."""
    said = [value for name, value in scope.get("headers", ()) if name == b"x-forwarded-proto"]
    return bool(said) and said[-1].strip().lower() == b"https"


def networks_of(texts: Sequence[str]) -> list[Network]:
    """The networks of the setting."""
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise ImproperlyConfigured(f"REPLSITE_PROXY_NETWORKS: {error}; write networks such as 127.0.0.1/32.") from None


def client_of(peer: str, forwarded_for: str, networks: Sequence[Network]) -> str:
    """The last address of the header that is no proxy's; the peer itself when there is none that can be read."""
    for text in reversed([part.strip() for part in forwarded_for.rsplit(",", _MOST_PROXIES)]):
        if not _is_address(text):
            return peer
        peer = text
        if not _is_among(text, networks):
            break
    return peer


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_among(text: str, networks: Sequence[Network]) -> bool:
    if not _is_address(text):
        return False
    address = ipaddress.ip_address(text)
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in networks)
