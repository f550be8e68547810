"""Admission to the replication port by the client's address: plain text, TLS, or refused (pure).

Without TLS, only loopback and the networks of ``REPLSITE_PLAIN_NETWORKS`` are admitted, in plain text. With TLS, every
address is admitted with a client certificate. Clients in the networks of ``REPLSITE_PLAIN_NETWORKS`` may use plain text
even then, because a worker of Synapse 1.43 does not support TLS.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Sequence

from streams.replication.errors import BadAddress

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AllowedTransport(enum.Enum):
    """The transport that a client may use: plain text, TLS, either of them, or none."""

    PLAIN = "plain"
    TLS = "TLS"
    EITHER = "either"
    NOTHING = "nothing"


def networks_of(texts: Sequence[str], setting: str = "REPLSITE_PLAIN_NETWORKS") -> list[Network]:
    """Parses networks. Raises `BadAddress`, with ``setting`` in its message, if a text is not a network."""
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise BadAddress(f"{setting}: {error}; write networks such as 10.1.2.0/24.") from error


def is_among(host: str, networks: Sequence[Network]) -> bool:
    address = _address(host)
    return address is not None and any(address in network for network in networks)


def address_key(host: str) -> str:
    """Returns the key under which the limits per address count a client.

    The key of an IPv4 address is the address itself. IPv6 addresses share the key of their /64, because one client may
    own a whole /64. All loopback addresses share ``loopback``. The key of a host that is no IP address is ``host``
    itself.
    """
    address = _address(host)
    if address is None:
        return host
    if address.is_loopback:
        return "loopback"
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class Access:
    """The rule of admission, which decides by a client's address which transport the client may use."""

    def __init__(self, plain_networks: Sequence[str] = (), *, has_tls: bool = False) -> None:
        self._networks = networks_of(plain_networks)
        self._has_tls = has_tls

    def transport_for(self, host: str) -> AllowedTransport:
        """Returns the transport that a client from ``host`` may use.

        A host that is no IP address, such as a socket file, is treated like loopback.
        """
        address = _address(host)
        if address is None:
            return AllowedTransport.TLS if self._has_tls else AllowedTransport.PLAIN
        if self._has_tls:
            return AllowedTransport.EITHER if self._is_named(address) else AllowedTransport.TLS
        return AllowedTransport.PLAIN if self._is_named(address) or address.is_loopback else AllowedTransport.NOTHING

    def is_near(self, host: str) -> bool:
        """Returns true if ``host`` is a loopback address, or an address in one of ``plain_networks``."""
        address = _address(host)
        return address is not None and (self._is_named(address) or address.is_loopback)

    def _is_named(self, address: _IPAddress) -> bool:
        return any(address in network for network in self._networks)


def _address(host: str) -> _IPAddress | None:
    """Returns the IP address in ``host``, or None if ``host`` is no IP address.

    An IPv4 address in the mapped form of IPv6 (``::ffff:192.0.2.1``) is returned as an IPv4 address.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
