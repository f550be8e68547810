"""All rows of one room from its events at hand: what the bulk import makes in parts, in one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

from events.columns import EVENT_COLUMNS
from events.errors import HistoryError
from events.format.parsing import ParsedEvent
from events.history.chunked_walk import EventsInMemory
from events.history.rows import EVENTS_PER_CHUNK, RoomHistory
from events.visibility.ranges import VisibilityRow, in_order
from state.rules.room_versions import room_version

_EVENT_ID, _STATE_GROUP = EVENT_COLUMNS.index("event_id"), EVENT_COLUMNS.index("state_group")
_STATE_UNRESOLVED = EVENT_COLUMNS.index("state_unresolved")
_REJECTED_REASON = EVENT_COLUMNS.index("rejected_reason")


class GivenEvents(EventsInMemory):
    def __init__(self, events: Sequence[ParsedEvent]) -> None:
        if not events:
            raise HistoryError("there are no events")
        super().__init__(events[0].room_id, room_version(events[0].room_version), events, None)

    def check(self) -> None:
        """Raises ``HistoryError`` if the events are of several rooms or versions."""
        rooms = {(event.room_id, event.room_version) for event in self._events}
        if len(rooms) != 1:
            shown = ", ".join(sorted(f"{room} (version {version})" for room, version in rooms)[:5])
            raise HistoryError(f"the events are of {len(rooms)} rooms or versions instead of one: {shown}")

    def creations(self) -> Iterable[ParsedEvent]:
        return (event for event in self._events if event.type == "m.room.create" and not event.outlier)


@dataclass(slots=True)
class RoomResult:
    """Rows of one room, in table column order.

    ``index`` stands for the position of an event in the given sequence, ``group`` for a number from 0.
    """

    room_id: str
    room_version: str
    creator: str | None = None
    create_event_id: str | None = None
    current_state_unresolved: bool = False
    visibility_unresolved: bool = False
    events: list[tuple[object, ...]] = field(default_factory=list)
    """``EVENT_COLUMNS``, in the order of the given events; ``state_group`` is a group number."""
    edges: list[tuple[str, str]] = field(default_factory=list)
    """(event_id, prev_event_id); outliers have none."""
    auth: list[tuple[str, list[str]]] = field(default_factory=list)
    """(event_id, auth_event_ids) of state events."""
    forward_extremities: list[str] = field(default_factory=list)
    backward_extremities: list[str] = field(default_factory=list)
    timeline_gaps: list[int] = field(default_factory=list)
    groups: list[tuple[int, int | None, int, int, int, int]] = field(default_factory=list)
    """(group, prev_group, chain, hops, keys, rows_to_read): ``chain`` is a group number too."""
    group_deltas: list[tuple[int, int, str, str, str | None]] = field(default_factory=list)
    """(chain, group, type, state_key, event_id)."""
    current_state: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    """(type, state_key, event_id, membership); none when the room's current state is unresolved."""
    state_deltas: list[tuple[int, str, str, str | None, str | None]] = field(default_factory=list)
    """(index, type, state_key, event_id, prev_event_id): how the current state grew.

    None when it is unknown, and none for backfilled events, which never change it.
    """
    visibility: list[VisibilityRow] = field(default_factory=list)
    """None when ``visibility_unresolved``."""

    @property
    def rejected_events(self) -> int:
        """How many events the auth rules refuse."""
        return sum(row[_REJECTED_REASON] is not None for row in self.events)

    @property
    def unresolved_events(self) -> int:
        """How many events have no known state."""
        return sum(bool(row[_STATE_UNRESOLVED]) for row in self.events)

    @property
    def event_groups(self) -> list[tuple[str, int]]:
        """(event_id, group) of the events with a known state."""
        return [(row[_EVENT_ID], row[_STATE_GROUP]) for row in self.events if row[_STATE_GROUP] is not None]  # type: ignore[misc]


def room_history(events: Sequence[ParsedEvent], chunk: int = EVENTS_PER_CHUNK) -> RoomResult:
    """All rows of one room from its events in the order of their stream orderings.

    Raises ``HistoryError`` when they are of several rooms or versions, or hold an event twice.
    """
    given = GivenEvents(events)
    given.check()
    history = RoomHistory(given, chunk)
    result = RoomResult(history.room_id, history.version.name, history.creator, history.create_event_id)
    result.current_state_unresolved = history.current_state_unresolved
    result.visibility_unresolved = history.visibility_unresolved
    for part in history.events():
        result.events += zip(*part.columns, strict=True)
        graph = [event for event in part.events if not event.outlier]
        result.edges += [(event.event_id, prev) for event in graph for prev in event.prev_event_ids]
        result.auth += [(event.event_id, list(event.auth_event_ids)) for event in part.events if event.is_state]
    result.forward_extremities = list(history.forward_extremities())
    result.backward_extremities = list(history.backward_extremities())
    result.timeline_gaps = list(history.timeline_gaps())
    result.groups, result.group_deltas = list(history.groups()), list(history.group_deltas())
    result.current_state, result.state_deltas = list(history.current_state()), list(history.state_deltas())
    result.visibility = in_order(history.visibility())
    return result


#: Shipped rooms are among the large ones, and most generated rooms among the small ones, which must not put those out.
_LARGE, _KEPT = 100, 20
_Kept = dict[tuple[int, ...], tuple[Sequence[ParsedEvent], RoomResult]]
#: Large and small results by the identities of the events, which are kept with their result and do not change.
_results: tuple[_Kept, _Kept] = ({}, {})


def computed(events: Sequence[ParsedEvent]) -> RoomResult:
    """Returns what ``room_history`` does, and works it out once in a process; the lists belong to the caller."""
    key, kept = tuple(map(id, events)), _results[len(events) < _LARGE]
    kept[key] = found = kept.pop(key, None) or (tuple(events), room_history(events))
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]
    result = found[1]
    own = {field.name: getattr(result, field.name) for field in fields(result)}
    return replace(result, **{name: list(value) for name, value in own.items() if isinstance(value, list)})
