"""Connection limits that fit the process's limit on file descriptors.

Each connection needs a descriptor, and the process needs `OWN_DESCRIPTORS` for itself. Without a limit, many clients could
take all descriptors. The process could then neither connect to its database nor accept other clients.
"""

from __future__ import annotations

import resource
from dataclasses import replace

from streams.replication.transport.http_limits import HttpBounds
from streams.replication.transport.tcp_scope import ListenerLimits
from streams.runtime.logs import get_logger

__all__ = ["fitted", "raise_descriptor_limit"]

log = get_logger(__name__)
#: Descriptors for files, the database, listeners, and connections that are being closed.
OWN_DESCRIPTORS = 256


def raise_descriptor_limit(tcp: ListenerLimits, http: HttpBounds) -> tuple[ListenerLimits, HttpBounds]:
    """Raises the process's soft limit on descriptors as far as needed and possible. Returns limits that fit the raised limit.

    If the descriptors still do not suffice, it logs a warning and returns reduced limits (see `fitted`).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = tcp.connections + http.connections + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return tcp, http
    there = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (there, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they report
        there = soft
    if there >= wanted:
        return tcp, http
    tcp, http = fitted(tcp, http, there)
    log.warning(
        "listener.few_descriptors",
        descriptors=there,
        wanted=wanted,
        connections=tcp.connections,
        http_connections=http.connections,
    )
    return tcp, http


def fitted(tcp: ListenerLimits, http: HttpBounds, descriptors: int) -> tuple[ListenerLimits, HttpBounds]:
    """Reduces the limits by the same ratio, so that ``descriptors`` file descriptors suffice. Returns the reduced limits.

    A limit never falls below 1, and a limit of 0 stays 0. At most half of the descriptors are kept back for the process
    itself.
    """
    usable = descriptors - min(OWN_DESCRIPTORS, descriptors // 2)
    part = min(usable / (tcp.connections + http.connections), 1.0)

    def smaller(number: int) -> int:
        return max(int(number * part), 1) if number else 0

    return (
        replace(tcp, connections=smaller(tcp.connections), of_address=smaller(tcp.of_address)),
        replace(http, connections=smaller(http.connections), of_address=smaller(http.of_address)),
    )
