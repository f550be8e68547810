"""Censoring: a set time after a redaction the stored JSON of the redacted event is replaced by its pruned form.

The flag ``redacted_by`` is what readers go by, from the moment of the redaction; censoring takes the rest from the disk. Hashes
and signatures stay, so event ID and signatures still verify. Small transactions, each of one room, with the room locked first
like everybody who writes it; what is done is marked (``Event.censored_at``), so a run that was killed is simply run again.
Other processes are told in the same transaction: by the room's ``content_generation``, and on the stream ``caches``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

from django.db import connections, transaction

from events.declarations import CACHE_NAME
from events.errors import EventRefused, NotCanonical
from events.format.canonical_json import encode
from events.format.parsing import parse_event
from events.format.redaction import prune
from events.format.strict_json import decode_event
from state.rules.room_versions import room_version
from streams import registry
from streams.models import CacheInvalidation

__all__ = ["Censored", "censor", "censored_json", "due"]

_EVENTS_PER_TRANSACTION = 100
_LONGEST = timedelta(days=36_500)

_DUE = """
FROM events_event e LEFT JOIN events_event r ON r.event_id = e.redacted_by
WHERE e.redacted_by IS NOT NULL AND e.censored_at IS NULL
  AND greatest(e.received_at, r.received_at) <= clock_timestamp() - %(age)s * interval '1 second'
"""
_COUNT = f"SELECT count(*) {_DUE}"
_NEXT = f"""
SELECT e.room_id, e.stream_ordering, e.event_id {_DUE}
  AND (e.room_id, e.stream_ordering) > (%(room)s, %(position)s)
ORDER BY e.room_id, e.stream_ordering LIMIT %(limit)s
"""
_LOCK_ROOM = "UPDATE events_room SET content_generation = content_generation + 1 WHERE room_id = %s"
_TEXTS = """
SELECT event_id, j.room_version, j.json FROM events_event e JOIN events_eventjson j USING (event_id)
WHERE event_id = ANY(%s) AND e.redacted_by IS NOT NULL AND e.censored_at IS NULL FOR UPDATE OF e, j
"""
_REWRITE = """
UPDATE events_eventjson j SET json = pruned.json
FROM unnest(%s::text[], %s::bytea[]) AS pruned (event_id, json) WHERE j.event_id = pruned.event_id
"""
#: What columns tell of content that the pruned form has no more goes, too. The target of a redaction stays: it still counts.
_MARK = "UPDATE events_event SET censored_at = clock_timestamp(), relates_to = NULL WHERE event_id = ANY(%s)"


@dataclass(frozen=True, slots=True)
class Censored:
    """How far a run is. ``failed`` are events whose pruned form would not verify; they are left as they are."""

    events: int = 0
    rooms: int = 0
    failed: tuple[str, ...] = ()


def due(age: timedelta, using: str) -> int:
    """How many redacted events are not censored, and were known to be redacted for so long."""
    with connections[using].cursor() as cursor:
        cursor.execute(_COUNT, {"age": _seconds(age)})
        return int(cursor.fetchone()[0])


def censor(age: timedelta, using: str, limit: int | None = None) -> Iterator[Censored]:
    """Censor what is due, at most ``limit`` events; yields how far it is after every transaction.

    Must not be called inside a transaction. Appends facts, so this process becomes a writer of the stream ``caches``.
    """
    events, rooms, failed = 0, 0, list[str]()
    place, last_room = ("", 0), None
    while chunk := _next(age, place, _size(limit, events + len(failed)), using):
        place = chunk[-1][:2]
        for room_id, rows in groupby(chunk, lambda row: row[0]):
            done, refused = _censor_room(room_id, [row[2] for row in rows], using)
            events, failed = events + done, failed + refused
            rooms += room_id != last_room
            last_room = room_id
            yield Censored(events, rooms, tuple(failed))


def censored_json(json: bytes, version: str, event_id: str) -> bytes:
    """What is stored instead of an event's JSON: its pruned form in canonical JSON.

    Raises ``EventRefused`` or ``NotCanonical`` when that would be no event, or another one.
    """
    pruned = encode(prune(decode_event(json), room_version(version)), strict=False)
    parse_event(pruned, decode_event(pruned), version, event_id)
    return pruned


def _seconds(age: timedelta) -> float:
    """No longer than the database can count back from now."""
    return min(age, _LONGEST).total_seconds()


def _size(limit: int | None, done: int) -> int:
    return _EVENTS_PER_TRANSACTION if limit is None else max(0, min(_EVENTS_PER_TRANSACTION, limit - done))


def _next(age: timedelta, place: tuple[str, int], limit: int, using: str) -> list[tuple[str, int, str]]:
    """(room, position, event) of what is due behind a place."""
    if not limit:
        return []
    with connections[using].cursor() as cursor:
        cursor.execute(_NEXT, {"age": _seconds(age), "room": place[0], "position": place[1], "limit": limit})
        return list(cursor.fetchall())


def _censor_room(room_id: str, event_ids: Sequence[str], using: str) -> tuple[int, list[str]]:
    """One transaction: how many events were censored, and which ones cannot be."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_LOCK_ROOM, [room_id])
        cursor.execute(_TEXTS, [list(event_ids)])
        pruned, failed = _pruned(cursor.fetchall())
        if pruned:
            cursor.execute(_REWRITE, [list(pruned), list(pruned.values())])
            cursor.execute(_MARK, [list(pruned)])
            facts = (CacheInvalidation(cache_name=CACHE_NAME, keys=[event_id]) for event_id in pruned)
            registry.get("caches").append(*facts)
    return len(pruned), failed


def _pruned(rows: Sequence[Any]) -> tuple[dict[str, bytes], list[str]]:
    found: dict[str, bytes] = {}
    failed = []
    for event_id, version, json in rows:
        try:
            found[event_id] = censored_json(bytes(json), version, event_id)
        except (EventRefused, NotCanonical):
            failed.append(event_id)
    return found, failed
