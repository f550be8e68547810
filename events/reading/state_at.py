"""Reads the state before and after events, in full or reduced to what a filter accepts.

If the state is not known, the answer says so (``StateUnresolved``); the state is never guessed. Many events are
answered in rounds of bounded size. A round reads the state groups of its events by one query, and the states of these
groups by one more. If the states are very large, they are read in several queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from django.db import connections

from events.arguments import can_be_stored
from events.errors import StateUnresolved, UnknownEvent
from state.errors import UnknownStateGroup
from state.groups.deltas import StateKey
from state.groups.filters import EVERYTHING, StateFilter
from state.store import full_state, full_states

__all__ = ["State", "StateAt", "state_after", "state_at", "states_at"]

State = dict[StateKey, str]

_EVENTS_PER_ROUND = 500
_MOST_TRIES = 3
_ENTRIES_PER_ROUND = 200_000
"""The most entries of states in memory at a time, unless one event has more."""


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state before and after an event.

    Both are None for an outlier, which has no place in the graph.

    If the event changed nothing, the two states are the same object. The caller must not modify the states.
    """

    event_id: str
    before: State | None
    after: State | None

    @property
    def changes(self) -> dict[StateKey, tuple[str | None, str | None]]:
        """The entries that the event changed, as state key -> (event ID before or None, event ID after or None)."""
        before, after = self.before or {}, self.after or {}
        keys = {**before, **after} if before is not after else {}
        pairs = {key: (before.get(key), after.get(key)) for key in keys}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def state_at(event_id: str, using: str = "default", only: StateFilter = EVERYTHING) -> StateAt:
    """Returns the room's states before and after an event. Raises ``UnknownEvent`` and ``StateUnresolved``."""
    (found,) = states_at([event_id], using, only)
    if isinstance(found, StateAt):
        return found
    raise found


def state_after(event_id: str, using: str = "default", only: StateFilter = EVERYTHING) -> State:
    """Returns the room's state after an event, which is empty for an outlier.

    Takes half the time of ``state_at``. Raises ``UnknownEvent`` and ``StateUnresolved``.
    """
    for tries_left in reversed(range(_MOST_TRIES)):
        place = _places([event_id], using).get(event_id)
        if place is None or not (place.outlier or place.after):
            break
        try:
            return {} if place.outlier else full_state(place.after, using, only)
        except UnknownStateGroup:  # as in ``_states``
            if not tries_left:
                raise
    raise _unknown(event_id) if place is None else _unresolved(event_id)


def states_at(
    event_ids: Iterable[str], using: str = "default", only: StateFilter = EVERYTHING
) -> Iterator[StateAt | UnknownEvent | StateUnresolved]:
    """Yields for each event (of any rooms), in order, its states or the error that says why they are not known.

    Raises ``InvalidQuery`` for an ID that is not a string.
    """
    rest = iter(event_ids)
    while ids := list(islice(rest, _EVENTS_PER_ROUND)):
        places = _places(ids, using)
        for part in _parts(ids, places):
            places_now, states = _states(part, places, using, only)
            for event_id in part:
                yield _answer(event_id, places_now.get(event_id), states)


# --- one round --------------------------------------------------------------------------------------------------------

#: The state groups of events and their sizes, one row for each stored event.
_PLACES = """
SELECT e.event_id, e.outlier, coalesce(e.state_group, 0), coalesce(g.prev_group, 0), coalesce(g.keys, 0),
       e.state_key IS NOT NULL AND e.rejected_reason IS NULL, e.type = 'm.room.create' AND e.state_key = ''
FROM events_event e LEFT JOIN state_stategroup g ON g.id = e.state_group
WHERE e.event_id = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class _Place:
    # 0 stands for no group
    event_id: str
    outlier: bool
    after: int
    prev_group: int
    keys: int
    changes_state: bool
    is_create: bool

    @property
    def before(self) -> int:
        # An accepted state event has a group of its own, on top of the group before it. Any other has one group for
        # both.
        return self.prev_group if self.changes_state else self.after

    @property
    def groups(self) -> list[int]:
        return sorted({self.before, self.after} - {0})


def _places(event_ids: Sequence[str], using: str) -> dict[str, _Place]:
    possible = [event_id for event_id in event_ids if can_be_stored(event_id)]
    with connections[using].cursor() as cursor:
        cursor.execute(_PLACES, [possible])
        return {row[0]: _Place(*row) for row in cursor.fetchall()}


def _states(
    event_ids: Sequence[str], places: dict[str, _Place], using: str, only: StateFilter
) -> tuple[dict[str, _Place], dict[int, State]]:
    for _ in range(_MOST_TRIES - 1):
        groups = {group for event_id in event_ids if event_id in places for group in places[event_id].groups}
        try:
            return places, full_states(groups, using, only)
        except UnknownStateGroup:
            # The places named group 7, then a job compressed or purged the room and deleted group 7. Read both again.
            places = _places(event_ids, using)
    return places, full_states({group for place in places.values() for group in place.groups}, using, only)


def _parts(event_ids: Sequence[str], places: dict[str, _Place]) -> Iterator[list[str]]:
    # The states of a part together have a bounded number of entries.
    part: list[str] = []
    sizes: dict[int, int] = {}
    for event_id in event_ids:
        place = places.get(event_id)
        place_sizes = dict.fromkeys(place.groups, place.keys) if place is not None else {}
        if part and sum((sizes | place_sizes).values()) > _ENTRIES_PER_ROUND:
            yield part
            part, sizes = [], {}
        part.append(event_id)
        sizes |= place_sizes
    if part:
        yield part


def _answer(event_id: str, place: _Place | None, states: dict[int, State]) -> StateAt | UnknownEvent | StateUnresolved:
    if place is None:
        return _unknown(event_id)
    if place.outlier:
        return StateAt(event_id, None, None)
    if not place.after:
        return _unresolved(event_id)
    if not place.before and not place.is_create:
        return StateUnresolved(f"The state before {event_id} is not known: it is no longer stored.")
    return StateAt(event_id, states[place.before] if place.before else {}, states[place.after])


def _unknown(event_id: str) -> UnknownEvent:
    return UnknownEvent(f"There is no event {event_id:.300}.")


def _unresolved(event_id: str) -> StateUnresolved:
    return StateUnresolved(f"The state at {event_id} is not known: events that it builds on are not here.")
