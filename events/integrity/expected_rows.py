"""A room's rows beside what the same rules make of its stored JSON (pure): every difference, and what nobody can recompute.

Verdicts are taken as they are stored, because they depend on the order of arrival or were told from outside; where the rules
say otherwise now that is a *doubt*. So is a state that may have been told with an event whose prev events came later, or
never: it counts as stored for everything above. Everything else follows from the events: a difference in it is damage.

Many rooms can be checked in many places: ``compute`` takes the rows of one and asks no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from events.format.parsing import ParsedEvent
from events.integrity.group_digests import DeltaRow, Digests, GroupRow, StoredGroups
from events.room.graph import backward_extremities, is_accepted
from events.room.state_assignment import RoomStates, Stored, is_create
from events.visibility.ranges import VisibilityRow, in_order
from events.visibility.recompute import GraphRanges
from events.visibility.viewer import membership
from state.groups.deltas import GroupBuilder, StateKey
from state.rules.room_versions import RoomVersion, room_version

__all__ = ["Columns", "Computed", "RoomRows", "StoredEvent", "compute", "stored_before"]


class Columns(NamedTuple):
    """The columns of an event, and its rows in other tables, that its JSON tells; ``edges`` ascending, ``auth`` null: no row."""

    type: str
    state_key: str | None
    sender: str
    topological_ordering: int
    origin_server_ts: int
    membership: str | None
    redacts: str | None
    relates_to: str | None
    edges: Sequence[str]
    auth: Sequence[str] | None

    @classmethod
    def of(cls, event: ParsedEvent) -> Columns:
        """What they should be."""
        prevs = [] if event.outlier else sorted(event.prev_event_ids)
        return cls(
            event.type,
            event.state_key,
            event.sender,
            event.depth,
            event.origin_server_ts,
            event.membership,
            event.redacts,
            event.relates_to,
            prevs,
            None if event.state_key is None else [*event.auth_event_ids],
        )


class StoredEvent(NamedTuple):
    """A row of an event, with what its JSON says and the stored verdict; ``problem`` tells why there is nothing.

    ``columns`` is null where they are as its JSON says.
    """

    event_id: str
    stream_ordering: int
    outlier: bool
    rejected_reason: str | None
    soft_failed: bool
    redacted_by: str | None
    state_unresolved: bool
    censored: bool
    state_group: int | None
    columns: Columns | None
    parsed: ParsedEvent | None
    problem: str | None = None

    @property
    def is_state(self) -> bool:
        """By its column."""
        about = self.columns if self.columns is not None else self.parsed
        return about is not None and about.state_key is not None


@dataclass(slots=True)
class RoomRows:
    """Everything that is stored of a room; events in the order of their stream orderings."""

    room_id: str
    room_version: str
    creator: str | None
    create_event_id: str | None
    current_state_unresolved: bool
    visibility_unresolved: bool
    events: list[StoredEvent] = field(default_factory=list)
    forward: set[str] = field(default_factory=set)
    backward: set[str] = field(default_factory=set)
    groups: Sequence[GroupRow] = ()
    deltas: Sequence[DeltaRow] = ()
    current: dict[StateKey, tuple[str, str | None]] = field(default_factory=dict)
    ranges: list[VisibilityRow] = field(default_factory=list)


class _CheckedStates(RoomStates):
    """States by the rules, or as stored where they may have been told from outside.

    ``told`` has the stored state before such an event; ``differing`` fills up with those for which the rules say otherwise.
    """

    def __init__(
        self, version: RoomVersion, events: Sequence[ParsedEvent], create: ParsedEvent | None, told: Mapping[str, int]
    ) -> None:
        stored = Stored({}, create, GroupBuilder(), {}, lambda _states: None, trusting=True, whole=True)
        super().__init__(version, events, stored)
        self.digests = Digests(self.builder)
        self.differing: list[str] = []
        self.kept: dict[str, int] = {}
        """Events whose state is the stored one, with the stored group."""
        self.stored_groups = StoredGroups((), ())
        self._told = told

    def _before(self, event: ParsedEvent) -> int | None:
        known = self._after_prevs(event)
        group = self._told.get(event.event_id)
        if group is None:
            return known
        if known is not None:
            if self.digests.of(known) == self.stored_groups.digests[group]:
                return known
            self.differing.append(event.event_id)
        self.kept[event.event_id] = group
        state = self.stored_groups.state(group)
        for entry in state.values():  # resolutions on top of it walk from all of them, and some may come later
            if entry in self.events:
                self.auth_graph.rank(entry)
        return self.builder.add_full(state)


@dataclass(slots=True)
class Computed:
    """What the rows of a room should be, as far as anybody can say."""

    rows: RoomRows
    events: dict[str, ParsedEvent]
    """Every event, by its JSON if that is there, with the stored verdict."""
    stored: StoredGroups
    states: _CheckedStates
    create: ParsedEvent | None
    graph: GraphRanges
    ranges: list[VisibilityRow] | None
    forward: set[str]
    """The leaves."""
    current_group: int | None
    """The group of the current state; null: not known."""

    @property
    def known_ranges(self) -> list[VisibilityRow] | None:
        """Who sees what; null where nobody can know it."""
        return None if self.current_group is None else self.ranges

    def before_is_stored(self, event: StoredEvent) -> bool:
        """Whether the group that is read as the state before an event has the right state."""
        wanted = self.states.before.get(event.event_id)
        if wanted is None:
            return True
        group = stored_before(event, self.stored)
        return group is not None and self.stored.digests.get(group) == self.states.digests.of(wanted)

    def after_is_stored(self, event: StoredEvent) -> bool:
        """Whether the group of an event has the right state; both may be unknown."""
        wanted = self.states.after.get(event.event_id)
        if wanted is None:
            return event.state_group is None
        group = event.state_group
        return group is not None and self.stored.digests.get(group) == self.states.digests.of(wanted)

    @property
    def backward(self) -> set[str]:
        """The gaps."""
        return set(backward_extremities(self.events.values()))

    @property
    def current(self) -> dict[StateKey, tuple[str, str | None]] | None:
        """The current state with memberships, or null."""
        if self.current_group is None:
            return None
        state = self.states.builder.expand(self.current_group)
        return {
            key: (event_id, found.membership if (found := self.events.get(event_id)) else None)
            for key, event_id in state.items()
        }

    def redactions(self) -> dict[str, list[str]]:
        """Target -> accepted redactions that take effect, in the order of the stream."""
        found: dict[str, list[str]] = {}
        for row in self.rows.events:
            event = self.events[row.event_id]
            if event.redacts in self.events and is_accepted(event) and self.graph.redacts_something(event):
                found.setdefault(event.redacts or "", []).append(event.event_id)
        return found

    def undecided(self, event_id: str | None) -> bool:
        """Whether nobody knows if this redaction takes effect: it is accepted and the state before it is not known."""
        event = self.events.get(event_id or "")
        return event is not None and is_accepted(event) and event_id not in self.states.before


def compute(rows: RoomRows) -> Computed:
    """What the same rules make of the stored JSON."""
    version = room_version(rows.room_version)
    events = {row.event_id: row.parsed or _lost(row, rows) for row in rows.events}
    stored = StoredGroups(rows.groups, rows.deltas)
    create = _create(rows, events.values())
    states = _CheckedStates(version, list(events.values()), create, _told(rows, events, stored))
    states.stored_groups = stored
    states.assign(list(events.values()))
    graph = [states.events[event_id] for event_id, event in events.items() if not event.outlier]
    targets = {event.event_id: (event.type, event.sender) for event in events.values()}
    ranges = GraphRanges(graph, states, targets)
    found, current = ranges.ranges(), ranges.current
    if found is not None:
        found = in_order([*found, *_cuts_of_before(rows, graph, states, current)])
    return Computed(rows, dict(states.events), stored, states, create, ranges, found, set(ranges.leaves), current)


def stored_before(event: StoredEvent, stored: StoredGroups) -> int | None:
    """The group that is read as the state before an event."""
    group = event.state_group
    if group is None or not event.is_state or event.rejected_reason is not None or group not in stored:
        return group
    return stored.below(group)


def _lost(row: StoredEvent, rows: RoomRows) -> ParsedEvent:
    """An event whose JSON says nothing: as it is in the columns."""
    columns = row.columns
    if columns is None:  # they are kept where there is nothing to compare them with
        raise AssertionError(f"{row.event_id} has neither JSON nor columns")
    return ParsedEvent(
        event_id=row.event_id,
        room_id=rows.room_id,
        room_version=rows.room_version,
        type=columns.type,
        state_key=columns.state_key,
        sender=columns.sender,
        depth=columns.topological_ordering,
        origin_server_ts=columns.origin_server_ts,
        prev_event_ids=tuple(columns.edges),
        auth_event_ids=tuple(columns.auth or ()),
        membership=columns.membership,
        redacts=columns.redacts,
        relates_to=columns.relates_to,
        content_hash_matches=True,
        json=b"",
        content={},
        outlier=row.outlier,
        rejected_reason=row.rejected_reason,
        soft_failed=row.soft_failed,
        stream_ordering=row.stream_ordering,
        rejection_given=not (row.state_unresolved and row.state_group is None and row.rejected_reason is None),
        soft_failure_given=True,
    )


def _create(rows: RoomRows, events: Iterable[ParsedEvent]) -> ParsedEvent | None:
    """The event that began the room: one in the graph, else the one that was named, or told of."""
    begun = [event for event in events if is_create(event)]
    named = [event for event in begun if event.event_id == rows.create_event_id]
    inside = [event for event in begun if not event.outlier]
    return next(iter([*(event for event in named if not event.outlier), *inside, *named, *begun]), None)


def _cuts_of_before(
    rows: RoomRows, graph: Sequence[ParsedEvent], states: RoomStates, current: int | None
) -> list[VisibilityRow]:
    """Ends of view of those who left below everything that is here: nothing but the stored rows tells where."""
    places = [event.stream_ordering for event in graph if is_accepted(event) and event.stream_ordering is not None]
    first = min((place for place in places if place > 0), default=0)
    kept = [row for row in rows.ranges if row.kind == "cut" and row.last is None and row.first < first]
    if current is None or not kept:
        return []
    state = states.state(current)
    return [row for row in kept if membership(state, row.user_id or "") not in (None, "join")]


# --- what may have been told ------------------------------------------------------------------------------------------


def _told(rows: RoomRows, events: Mapping[str, ParsedEvent], stored: StoredGroups) -> dict[str, int]:
    """Event -> the stored group before it, where prev events were perhaps not here when it came."""
    by_id = {row.event_id: row for row in rows.events if not row.outlier}
    doubted = _contradicted(by_id, events, stored)
    found: dict[str, int] = {}
    for row in by_id.values():
        prevs = events[row.event_id].prev_event_ids
        group = stored_before(row, stored)
        if group not in stored or group is None or not prevs or row.event_id in doubted:
            continue
        if not _is_linked(row, prevs, by_id, group) and any(_came_later(by_id.get(prev), row) for prev in prevs):
            found[row.event_id] = group
    return found


def _is_linked(row: StoredEvent, prevs: Sequence[str], by_id: Mapping[str, StoredEvent], group: int) -> bool:
    """Whether the stored state before an event is just that after its only prev event."""
    prev = by_id.get(prevs[0]) if len(prevs) == 1 else None
    return prev is not None and prev.state_group == group


def _came_later(prev: StoredEvent | None, row: StoredEvent) -> bool:
    """Whether a prev event is not here, has no state, or may have come after the event; old ones come in any order."""
    if prev is None or prev.state_unresolved:
        return True
    return min(prev.stream_ordering, row.stream_ordering) < 0 or prev.stream_ordering > row.stream_ordering


def _contradicted(
    by_id: Mapping[str, StoredEvent], events: Mapping[str, ParsedEvent], stored: StoredGroups
) -> set[str]:
    """Events whose stored group is not the one that an event on top of them alone goes on with."""
    found = set()
    for row in by_id.values():
        prevs = events[row.event_id].prev_event_ids
        prev = by_id.get(prevs[0]) if len(prevs) == 1 else None
        if prev is None or prev.state_group is None or row.state_group is None:
            continue
        before = stored_before(row, stored)
        if not (before in stored and prev.state_group in stored):
            continue
        if stored.digests[before] != stored.digests[prev.state_group] and not _came_later(prev, row):  # type: ignore[index]
            found.add(prev.event_id)
    return found
