"""Queues of outgoing data for federation senders in other processes: the streams ``federation`` and ``presence_federation``.

Both streams are in memory. An item of ``federation`` is deleted when every known sender has acknowledged it
(FEDERATION_ACK), at the latest after an hour. An item of ``presence_federation`` is deleted after five minutes. A
sender that was away for longer has missed items, and must read the present state from elsewhere. A sender must also do
so after a crash of the database server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streams.catalog.declarations import FEDERATION_TYPES
from streams.catalog.models import FederationItem, PresenceDestination
from streams.errors import UnusableFact
from streams.homeserver.append import append_rows, json_text
from streams.homeserver.freeing import free_sometimes


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


def _append(stream_name: str, rows: list[Any]) -> int:
    token = append_rows(stream_name, rows)
    free_sometimes(stream_name)
    return token
