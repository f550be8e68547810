"""A connection limit that fits the process's limit on file descriptors.

Each connection needs a descriptor, and the process needs `OWN_DESCRIPTORS` for itself. Without a limit, many followers
could take all descriptors. The process could then neither connect to its database nor answer the proxy.
"""

from __future__ import annotations

import resource
from dataclasses import replace

from streams.replication.transport.tcp_scope import ListenerLimits
from streams.runtime.logs import get_logger

log = get_logger(__name__)
#: Descriptors for files, the database, requests of the proxy, listeners, and connections that are being closed.
OWN_DESCRIPTORS = 1_000


def raise_descriptor_limit(limits: ListenerLimits) -> ListenerLimits:
    """Raises the process's soft limit on descriptors as far as needed and possible. Returns limits that fit the raised limit.

    If the descriptors still do not suffice, it logs a warning and returns reduced limits (see `fitted`).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    there = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (there, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they report
        there = soft
    if there < wanted:
        limits = fitted(limits, there)
        log.warning("listener.few_descriptors", descriptors=there, wanted=wanted, connections=limits.connections)
    return limits


def fitted(limits: ListenerLimits, descriptors: int) -> ListenerLimits:
    """Reduces the limits by the same ratio, so that ``descriptors`` file descriptors suffice. Returns the reduced limits.

    At most half of the descriptors are kept back for the process itself. A limit of 0 stays 0.
    """
    usable = min(descriptors - min(OWN_DESCRIPTORS, descriptors // 2), limits.connections)
    of_address = -(-limits.of_address * usable // limits.connections)  # rounded up: 0 would be no limit
    return replace(limits, connections=usable, of_address=of_address)
