"""Who may speak to the replication port, and how: plain text, TLS, or not at all (pure).

Without TLS: loopback and the named networks, in plain text. With TLS: everybody, with a client certificate; the named
networks may speak plain text as well, since a worker of 1.43 knows no TLS.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Sequence

from streams.replication.errors import BadAddress

__all__ = ["Access", "Speech", "networks_of"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Speech(enum.Enum):
    """What a client may speak."""

    PLAIN = "plain"
    TLS = "TLS"
    EITHER = "either"
    NOTHING = "nothing"


def networks_of(texts: Sequence[str]) -> list[Network]:
    """The networks of the setting; raises `BadAddress`."""
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise BadAddress(f"REPLSITE_PLAIN_NETWORKS: {error}; write networks such as 10.1.2.0/24.") from error


class Access:
    """Decides by the client's address."""

    def __init__(self, plain_networks: Sequence[str] = (), *, has_tls: bool = False) -> None:
        self._networks = networks_of(plain_networks)
        self._has_tls = has_tls

    def of(self, host: str) -> Speech:
        """What a client from there may speak; a host that is no IP address is a local one, such as a socket file."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return Speech.TLS if self._has_tls else Speech.PLAIN
        address = getattr(address, "ipv4_mapped", None) or address
        named = any(address in network for network in self._networks)
        if self._has_tls:
            return Speech.EITHER if named else Speech.TLS
        return Speech.PLAIN if named or address.is_loopback else Speech.NOTHING
