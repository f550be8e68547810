"""Determines the client's address and scheme for requests that a reverse proxy passed on.

``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed from this machine, also through a socket file, and from the
networks of ``REPLSITE_PROXY_NETWORKS``. Other clients could write anything into them. The client is the last address in
the header that is not a proxy's. The addresses before it were written by the client itself.

If a request from any other address claims HTTPS, that address may be a proxy that is not configured. This is logged
once for each address. With ``REPLSITE_HTTPS_ONLY``, requests through such a proxy are redirected to HTTPS in an endless
loop.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from django.conf import settings

from streams.conf import stream_settings
from streams.replication.protocol.access import Network, is_among, networks_of
from streams.runtime.logs import get_logger

Application = Callable[..., Awaitable[Any]]
log = get_logger(__name__)
#: Programs of this machine may be proxies; they reach the site's other ports as well.
_THIS_MACHINE = ("127.0.0.0/8", "::1/128")
#: Limit on the addresses that are logged, since any client can claim to be a proxy.
_MOST_LOGGED = 10
#: Limit on the addresses that are read. A header has room for a thousand, and reading those takes longer than the page.
_MOST_PROXIES = 20


class Forwarded:
    """ASGI middleware that puts the real client's address and scheme into the scope.

    It changes the scope only if a configured proxy passed the request on.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        named = stream_settings().proxy_networks
        self._networks = networks_of([*_THIS_MACHINE, *named], "REPLSITE_PROXY_NETWORKS")
        self._logged: set[str] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        sender = (scope.get("client") or ["127.0.0.1"])[0]  # a client of a socket file has no address
        if is_among(sender, self._networks):
            scope = scope | self._forwarded(scope, sender)
        elif _claims_https(scope):
            self._warn(sender)
        return await self._application(scope, receive, send)

    def _warn(self, sender: str) -> None:
        if sender in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(sender)
        do = "if this is your proxy, add its address to REPLSITE_PROXY_NETWORKS"
        if settings.SECURE_SSL_REDIRECT:
            do += "; until then browsers are sent in a circle, as pages are for HTTPS alone"
        log.warning("proxy.not_named", address=sender, do=do)

    def _forwarded(self, scope: dict[str, Any], sender: str) -> dict[str, Any]:
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        client = client_of(sender, headers.get(b"x-forwarded-for", ""), self._networks)
        more: dict[str, Any] = {} if client == sender else {"client": [client, 0]}
        if _claims_https(scope):
            more["scheme"] = "https"
        return more


def _claims_https(scope: dict[str, Any]) -> bool:
    claims = [value for name, value in scope.get("headers", ()) if name == b"x-forwarded-proto"]
    return bool(claims) and claims[-1].strip().lower() == b"https"


def client_of(sender: str, forwarded_for: str, networks: Sequence[Network]) -> str:
    """Returns the last address in ``X-Forwarded-For`` that is not a proxy's.

    The search goes from right to left, and ends at the first text that is no address. If the search finds only addresses
    of proxies, returns the last one that it found, or ``peer`` if it found no address.
    """
    # From right to left: each proxy appends the address from which it received the request.
    for text in reversed([part.strip() for part in forwarded_for.rsplit(",", _MOST_PROXIES)]):
        if not _is_address(text):
            return sender
        sender = text
        if not is_among(text, networks):
            break
    return sender


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
