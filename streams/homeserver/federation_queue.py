"""Queues of outgoing data for federation senders in other processes: the streams ``federation`` and ``presence_federation``.

Both streams are in memory. An item of ``federation`` is deleted when every known sender has acknowledged it
(FEDERATION_ACK), at the latest after an hour. An item of ``presence_federation`` is deleted after five minutes. A
sender that was away for longer has missed items, and must read the present state from elsewhere. A sender must also do
so after a new generation of the streams began.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from django.db import connections

from streams import registry
from streams.catalog.declarations import FEDERATION_KEPT_SECONDS, FEDERATION_TYPES
from streams.catalog.models import FederationItem, PresenceDestination
from streams.conf import stream_settings
from streams.core.declaration import quoted
from streams.errors import UnusableFact
from streams.homeserver.append import append_rows, json_text

__all__ = ["free_old", "send_federation", "send_presence"]

#: Seconds for which a row is kept if it is not acknowledged.
KEEP_SECONDS = {"federation": FEDERATION_KEPT_SECONDS, "presence_federation": 300.0}
_FREE_EVERY_SECONDS = 30.0
_freed_at: dict[str, float] = {}


def send_federation(items: Iterable[tuple[str, Any]]) -> int:
    """Appends one fact to ``federation`` with the items to send, as (type, data) pairs. Returns the fact's token.

    The types are ``k``, ``e`` and ``pd`` (``FEDERATION_TYPES``). Raises ``UnusableFact`` for other types.
    """
    rows = []
    for kind, data in items:
        if kind not in FEDERATION_TYPES:
            raise UnusableFact(f"federation: there is no type {kind!r}; use {', '.join(sorted(FEDERATION_TYPES))}.")
        rows.append(FederationItem(type=kind, data=json_text("federation", data)))
    return _append("federation", rows)


def send_presence(destinations: Iterable[str], user_ids: Iterable[str]) -> int:
    """Appends one fact to ``presence_federation``: send the presence of each user to each server. Returns the fact's token."""
    users = list(user_ids)
    rows = [PresenceDestination(destination=server, user_id=user) for server in destinations for user in users]
    return _append("presence_federation", rows)


def free_old(stream_name: str) -> None:
    """Deletes the rows of a stream that are older than the stream's ``KEEP_SECONDS``.

    Runs in the caller's transaction if there is one.
    """
    table = registry.get(stream_name).declaration.tables[0]
    with connections[stream_settings().database].cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {quoted(table.name)} "
            f"WHERE {quoted(table.received_column)} < clock_timestamp() - make_interval(secs => %s)",
            [KEEP_SECONDS[stream_name]],
        )


def _append(stream_name: str, rows: list[Any]) -> int:
    token = append_rows(stream_name, rows)
    now = time.monotonic()
    if now - _freed_at.get(stream_name, -_FREE_EVERY_SECONDS) >= _FREE_EVERY_SECONDS:
        _freed_at[stream_name] = now
        free_old(stream_name)
    return token
