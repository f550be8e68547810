"""Reads, for the auth rules, a few entries from many state groups, and the events that these entries name.

Reads on the given database alias, in the caller's transaction if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from events.errors import EventRefused
from events.format.parsing import ParsedEvent, parse_event
from events.format.strict_json import decode_stored
from events.models import EventJson
from state.groups.deltas import StateKey
from state.store import entries

__all__ = ["StoredStates", "parsed_events"]

_EVENTS_PER_QUERY = 1_000


def parsed_events(event_ids: Collection[str], using: str = "default") -> dict[str, ParsedEvent]:
    """Returns the stored events with these IDs, parsed. IDs that are not stored are left out."""
    found: dict[str, ParsedEvent] = {}
    wanted = sorted(event_ids)
    for start in range(0, len(wanted), _EVENTS_PER_QUERY):
        rows = EventJson.objects.using(using).filter(event_id__in=wanted[start : start + _EVENTS_PER_QUERY])
        for event_id, version, json in rows.values_list("event_id", "room_version", "json"):
            found[event_id] = _parsed(bytes(json), version, event_id)
    return found


def _parsed(json: bytes, version: str, event_id: str) -> ParsedEvent:
    try:
        return parse_event(json, decode_stored(json), version, event_id)
    except EventRefused as refused:  # every stored event was parsed before it was stored
        raise AssertionError(f"stored event {event_id} cannot be read: {refused}") from refused


class StoredStates:
    """The entries with the given keys in the states of some groups, and the parsed events that these entries name."""

    def __init__(self, groups: Iterable[int], keys: Collection[StateKey], using: str = "default") -> None:
        self._entries = entries(sorted(set(groups)), keys, using)
        named = {event_id for state in self._entries.values() for event_id in state.values()}
        self._events = parsed_events(named, using)

    def state(self, group: int | None) -> Mapping[StateKey, ParsedEvent] | None:
        """Returns the entries of a group's state that were read, in the form for the auth rules.

        Returns null if ``group`` is null.
        """
        if group is None:
            return None
        found = self._entries[group].items()
        return {key: self._events[event_id] for key, event_id in found if event_id in self._events}
