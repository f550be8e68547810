"""Who may speak to the replication port, and how: plain text, TLS, or not at all (pure).

Without TLS: loopback and the named networks, in plain text. With TLS: everybody, with a client certificate; the named
networks may speak plain text as well, since a worker of 1.43 knows no TLS.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Sequence

from streams.replication.errors import BadAddress

__all__ = ["Access", "Network", "Speech", "address_key", "is_among", "networks_of"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Speech(enum.Enum):
    """What a client may speak."""

    PLAIN = "plain"
    TLS = "TLS"
    EITHER = "either"
    NOTHING = "nothing"


def networks_of(texts: Sequence[str], setting: str = "REPLSITE_PLAIN_NETWORKS") -> list[Network]:
    """The networks of the setting; raises `BadAddress`."""
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise BadAddress(f"{setting}: {error}; write networks such as 10.1.2.0/24.") from error


def is_among(host: str, networks: Sequence[Network]) -> bool:
    """Whether this is an address of one of the networks."""
    address = _address(host)
    return address is not None and any(address in network for network in networks)


def address_key(host: str) -> str:
    """What counts as one client: an address, the /64 of IPv6 that one client may have all of, this machine."""
    address = _address(host)
    if address is None:
        return host
    if address.is_loopback:
        return "loopback"
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class Access:
    """Decides by the client's address."""

    def __init__(self, plain_networks: Sequence[str] = (), *, has_tls: bool = False) -> None:
        self._networks = networks_of(plain_networks)
        self._has_tls = has_tls

    def of(self, host: str) -> Speech:
        """What a client from there may speak; a host that is no IP address is a local one, such as a socket file."""
        address = _address(host)
        if address is None:
            return Speech.TLS if self._has_tls else Speech.PLAIN
        if self._has_tls:
            return Speech.EITHER if self._is_named(address) else Speech.TLS
        return Speech.PLAIN if self._is_named(address) or address.is_loopback else Speech.NOTHING

    def is_near(self, host: str) -> bool:
        """Whether this is the address of this machine or of a named network."""
        address = _address(host)
        return address is not None and (self._is_named(address) or address.is_loopback)

    def _is_named(self, address: _IPAddress) -> bool:
        return any(address in network for network in self._networks)


def _address(host: str) -> _IPAddress | None:
    """The IP address that it is, that of IPv4 where one is mapped into IPv6; None for anything else."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
