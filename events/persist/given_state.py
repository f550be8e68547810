"""States told from outside: the state before an event whose prev events are not all here.

Whoever joins through another server, or hears of an event above a gap, is told the state as a list of state events. They are
stored first, or in the same batch, mostly as outliers; here they are checked and become a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from events.errors import EventRefused, Reason
from events.format.parsing import ParsedEvent
from events.room.state_assignment import is_create
from state.groups.deltas import StateKey
from state.rules.auth_selection import CREATE

__all__ = ["given_state"]


def given_state(event: ParsedEvent, named: Sequence[str], events: Mapping[str, ParsedEvent]) -> dict[StateKey, str]:
    """The state as a map; raises ``EventRefused`` (``bad-state``) for what is no state of the event's room.

    ``events`` finds stored events and those of the batch. Rejected events in it are left out by whoever uses the map, once
    all are judged.
    """
    found: dict[StateKey, str] = {}
    for event_id in dict.fromkeys(named):
        entry = events.get(event_id)
        if entry is None:
            raise _refused(f"{event_id} is neither stored nor in the batch")
        if entry.room_id != event.room_id:
            raise _refused(f"{event_id} is of the room {entry.room_id}")
        if entry.state_key is None:
            raise _refused(f"{event_id} is no state event")
        key = entry.type, entry.state_key
        if found.setdefault(key, event_id) != event_id:
            raise _refused(f"{found[key]} and {event_id} are both for {key}")
    if CREATE not in found:
        raise _refused("the create event is missing")
    if not is_create(events[found[CREATE]]):
        raise _refused(f"the create event {found[CREATE]} may not begin the room")
    return found


def _refused(detail: str) -> EventRefused:
    return EventRefused(Reason.BAD_STATE, f"the state given with it cannot be: {detail}")
