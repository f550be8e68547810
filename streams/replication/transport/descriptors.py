"""Connection limits that fit the process's limit on file descriptors.

Each connection needs a descriptor, and the process needs `OWN_DESCRIPTORS` for itself. Without a limit, many clients could
take all descriptors. The process could then neither connect to its database nor accept other clients.
"""

from __future__ import annotations

import resource
from dataclasses import replace

from streams.replication.transport.tcp_scope import ListenerLimits
from streams.runtime.logs import get_logger

__all__ = ["fitted", "raise_descriptor_limit"]

log = get_logger(__name__)
#: Descriptors for files, the database, listeners, and connections that are being closed.
OWN_DESCRIPTORS = 256


def raise_descriptor_limit(limits: ListenerLimits) -> ListenerLimits:
    """Raises the process's soft limit on descriptors as far as needed and possible. Returns limits that fit the raised limit.

    If the descriptors still do not suffice, it logs a warning and returns reduced limits (see `fitted`).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.tcp_connections + limits.http.connections + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    there = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (there, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they report
        there = soft
    if there >= wanted:
        return limits
    found = fitted(limits, there)
    log.warning(
        "listener.few_descriptors",
        descriptors=there,
        wanted=wanted,
        connections=found.tcp_connections,
        http_connections=found.http.connections,
    )
    return found


def fitted(limits: ListenerLimits, descriptors: int) -> ListenerLimits:
    """Reduces the limits by the same ratio, so that ``descriptors`` file descriptors suffice. Returns the reduced limits.

    A limit never falls below 1, and a limit of 0 stays 0. At most half of the descriptors are kept back for the process
    itself.
    """
    usable = descriptors - min(OWN_DESCRIPTORS, descriptors // 2)
    part = min(usable / (limits.tcp_connections + limits.http.connections), 1.0)

    def smaller(number: int) -> int:
        return max(int(number * part), 1) if number else 0

    http = replace(
        limits.http, connections=smaller(limits.http.connections), of_address=smaller(limits.http.of_address)
    )
    return replace(
        limits,
        tcp_connections=smaller(limits.tcp_connections),
        tcp_of_address=smaller(limits.tcp_of_address),
        http=http,
    )
