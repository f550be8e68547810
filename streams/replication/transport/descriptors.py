"""How many connections a process can have: each costs a descriptor, and the process needs some of them itself.

Without this a crowd of clients would take all descriptors, and the process could neither open a connection to its database nor
take anybody else's.
"""

from __future__ import annotations

import resource
from dataclasses import replace

from streams.replication.transport.tcp_scope import ListenerLimits
from streams.runtime.logs import get_logger

__all__ = ["fitted", "with_descriptors"]

log = get_logger(__name__)
#: For files, the database, listeners, and connections on their way out.
OWN_DESCRIPTORS = 256


def with_descriptors(limits: ListenerLimits) -> ListenerLimits:
    """Asks the system for enough of them; returns the limits as they can be held."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.tcp_connections + limits.http.connections + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    there = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (there, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
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
    """Returns the limits, all made smaller in the same measure, that so many descriptors are enough for."""
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
