"""Reads, for the auth rules, a few entries from many state groups, and the events that these entries name.

Reads on the given database alias, in the caller's transaction if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from django.db import connections

from events.errors import EventRefused, EventUnreadable
from events.format.parsing import RULED_TYPES, ParsedEvent, event_of_columns, parse_event
from events.format.strict_json import decode_stored
from events.models import EventJson
from state.groups.deltas import StateKey
from state.store import entries

_EVENTS_PER_QUERY = 1_000
#: The columns of events from which ``ParsedEvent`` objects are made without their JSON, in the order of its fields.
_COLUMNS = """
SELECT e.event_id, e.room_id, coalesce(j.room_version, r.room_version), e.type, e.state_key, e.sender, e.topological_ordering,
  e.origin_server_ts, ARRAY(SELECT prev_event_id FROM events_eventedge edge WHERE edge.event_id = e.event_id ORDER BY 1),
  coalesce(auth.auth_event_ids, '{}'), e.membership, e.redacts, e.relates_to
FROM events_event e LEFT JOIN events_eventauth auth USING (event_id) LEFT JOIN events_eventjson j USING (event_id)
LEFT JOIN events_room r ON r.room_id = e.room_id WHERE e.event_id = ANY(%s)
"""


class _Read(NamedTuple):
    # ``unreadable`` maps the ID of an event whose content rules need, and cannot have, to its room.
    events: dict[str, ParsedEvent]
    unreadable: dict[str, str]


def parsed_events(event_ids: Collection[str], using: str = "default") -> dict[str, ParsedEvent]:
    """Returns the stored events with these IDs, parsed.

    IDs that are not stored are left out.

    An event whose JSON is damaged or missing comes from its columns, without content. Raises ``EventUnreadable`` if its
    content decides who may do or see what.
    """
    found = _read(event_ids, using)
    if found.unreadable:
        raise _unreadable(*min(found.unreadable.items()))
    return found.events


def _read(event_ids: Collection[str], using: str) -> _Read:
    found, missing = dict[str, ParsedEvent](), set(event_ids)
    wanted = sorted(missing)
    for start in range(0, len(wanted), _EVENTS_PER_QUERY):
        rows = EventJson.objects.using(using).filter(event_id__in=wanted[start : start + _EVENTS_PER_QUERY])
        for event_id, version, json in rows.values_list("event_id", "room_version", "json"):
            if (event := _parsed(bytes(json), version, event_id)) is not None:
                found[event_id] = event
                missing.discard(event_id)
    if not missing:
        return _Read(found, {})
    with connections[using].cursor() as cursor:
        cursor.execute(_COLUMNS, [sorted(missing)])
        others = [event_of_columns(row) for row in cursor.fetchall()]
    unreadable = {event.event_id: event.room_id for event in others if event.type in RULED_TYPES}
    return _Read(found | {event.event_id: event for event in others if event.event_id not in unreadable}, unreadable)


def _parsed(json: bytes, version: str, event_id: str) -> ParsedEvent | None:
    event = decode_stored(json)
    try:
        return None if event is None else parse_event(json, event, version, event_id)
    except EventRefused:  # damaged as well: every stored event was parsed before it was stored
        return None


def _unreadable(event_id: str, room_id: str) -> EventUnreadable:
    return EventUnreadable(
        f"The stored JSON of {event_id} is damaged or missing, and its content decides who may do or see what in the room. "
        f"manage.py room check {room_id} lists what is damaged: restore it from a backup."
    )


class StoredStates:
    """The entries at the given keys in the states of some groups, and the parsed events that these entries name."""

    def __init__(self, groups: Iterable[int], keys: Collection[StateKey], using: str = "default") -> None:
        self._entries = entries(sorted(set(groups)), keys, using)
        named = {event_id for state in self._entries.values() for event_id in state.values()}
        self._events, self._unreadable = _read(named, using)

    def state(self, group: int | None) -> Mapping[StateKey, ParsedEvent] | None:
        """Returns the entries of a group's state that were read.

        Raises ``EventUnreadable`` if one has no readable content.
        """
        if group is None:
            return None
        found = self._entries[group].items()
        for _, event_id in found:
            if event_id in self._unreadable:
                raise _unreadable(event_id, self._unreadable[event_id])
        return {key: self._events[event_id] for key, event_id in found if event_id in self._events}
