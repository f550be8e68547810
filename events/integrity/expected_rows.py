"""Computes the right rows of a room, by applying the rules again to the stored JSON of its events (pure).

Stored verdicts are taken as right, because they depend on the order of arrival or came from outside. The state before
an event may also have come from outside, together with the event, if the prev events came later or never. Example: M
names P as prev event, arrived with a given state S, and P is stored behind it. Then S is taken as the state before M,
and the states of the events above are computed from it. If P leads to another state, that is a *doubt*. All other rows
follow from the events, so a difference in them is damage.

``compute`` takes the rows of one room and sends no query, so rooms can be checked in parallel, in any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple, cast

from events.columns import event_fields
from events.format.parsing import ParsedEvent, Verdict, event_of_columns
from events.history.chunked_walk import EventsInMemory
from events.history.rows import RoomHistory
from events.integrity.group_digests import DeltaRow, Digests, GroupRow, StoredGroups
from events.room.graph import is_accepted
from events.room.state_assignment import RoomStates, is_create
from events.visibility.ranges import VisibilityRow
from state.groups.deltas import StateKey
from state.rules.room_versions import room_version


class Columns(NamedTuple):
    """The columns of an event, and its rows in other tables, that follow from its JSON.

    ``edges`` are the prev events in ascending order. ``auth`` is None if the event has no row of auth events.
    """

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
        # an outlier has no edges, and a message has no auth row
        prevs = [] if event.outlier else sorted(event.prev_event_ids)
        auth = None if event.state_key is None else [*event.auth_event_ids]
        return cls._make((*event_fields(event)[2:10], prevs, auth))


class StoredEvent(NamedTuple):
    """The row of an event, with its parsed JSON and the stored verdict.

    ``columns`` is None where the columns agree with the JSON. ``parsed`` is None if the JSON is missing or unreadable;
    then ``problem`` is the reason.
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
        source = self.columns if self.columns is not None else self.parsed
        return source is not None and source.state_key is not None


@dataclass(slots=True)
class StoredRows:
    """All stored rows of a room, with its events in ascending order of stream ordering."""

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
    """The states by the rules, on top of stored states that possibly came from outside (``given_groups``).

    If the rules lead to a different state for an event in ``given_groups``, ``assign`` adds its ID to ``differing``.
    """

    def __init__(
        self,
        stored_groups: StoredGroups,
        given_groups: Mapping[str, int],
        event_ids: Iterable[str],
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self.unplaced.update(event_ids)
        self.accepts_unproven = False
        self.digests = Digests(self.builder)
        self.differing: list[str] = []
        self.stored_groups = stored_groups
        self._given_groups = given_groups

    def _assign(self, event: ParsedEvent) -> None:
        super()._assign(event)
        if event.event_id in self.after:
            self.unplaced.discard(event.event_id)

    def _before(self, event: ParsedEvent) -> int | None:
        known = self._after_prevs(event)
        group = self._given_groups.get(event.event_id)
        if group is None:
            return known
        if known is not None:  # all prev events are here by now, so the rules have an answer, too
            if self.digests.of(known) == self.stored_groups.digests[group]:
                return known
            self.differing.append(event.event_id)
        state = self.stored_groups.state(group)
        # A resolution above this state walks the auth chains of all its entries. Some of them may be assigned later.
        for entry in state.values():
            if entry in self.events:
                self.auth_graph.rank(entry)
        return self.builder.add_full(state)


@dataclass(slots=True)
class Computed:
    """The values that the rows of a room should have, as far as they can be computed."""

    rows: StoredRows
    events: dict[str, ParsedEvent]
    """Event ID -> event, by its JSON or else by its columns, with the stored verdict."""
    stored: StoredGroups
    states: _CheckedStates
    before: Mapping[str, int]
    """Event ID -> the computed group before the event, if it is known."""
    after: Mapping[str, int]
    create: ParsedEvent | None
    history: RoomHistory
    ranges: list[VisibilityRow] | None

    @property
    def known_ranges(self) -> list[VisibilityRow] | None:
        return None if self.history.current is None else self.ranges

    def state_before_is_right(self, event: StoredEvent) -> bool:
        """True unless the stored state before the event differs from the computed one. If none could be computed: true."""
        wanted = self.before.get(event.event_id)
        if wanted is None:
            return True
        group = stored_before(event, self.stored)
        return group is not None and self.stored.digests.get(group) == self.states.digests.of(wanted)

    def state_after_is_right(self, event: StoredEvent) -> bool:
        """True unless the stored state after the event differs. If none could be computed, the event must have no group."""
        wanted = self.after.get(event.event_id)
        if wanted is None:
            return event.state_group is None
        group = event.state_group
        return group is not None and self.stored.digests.get(group) == self.states.digests.of(wanted)

    def redactions(self) -> dict[str, list[str]]:
        """Returns for each redacted event the accepted redactions that take effect, in stream order."""
        ids = [row.event_id for row in self.rows.events]
        return {ids[target]: [ids[number] for number in found] for target, found in self.history.redacted.items()}

    def undecided(self, event_id: str | None) -> bool:
        """True for an accepted redaction whose effect is unknown, because the state before it is."""
        event = self.events.get(event_id or "")
        return event is not None and is_accepted(event) and event_id not in self.before


def compute(rows: StoredRows) -> Computed:
    """Returns the values that the rows of a room should have. Sends no query. Raises ``UnknownRoomVersion``."""
    events = {row.event_id: row.parsed or event_of_row(row, rows.room_id, rows.room_version) for row in rows.events}
    stored = StoredGroups(rows.groups, rows.deltas)
    create = _create(rows, events.values())
    source = EventsInMemory(rows.room_id, room_version(rows.room_version), list(events.values()), create)
    make_states = partial(_CheckedStates, stored, _given_groups(rows, events, stored), events)
    history = RoomHistory(source, max(len(source), 1), make_states=make_states, stored=True)
    authorised = history.walk.with_verdicts(range(len(source)))
    before, after = (
        {event_id: group for event_id, group in zip(events, groups, strict=True) if group >= 0}
        for groups in (history.walk.before, history.walk.after)
    )
    found = history.ranges([row.stream_ordering for row in rows.events])
    states = cast("_CheckedStates", history.states)
    return Computed(
        rows, dict(zip(events, authorised, strict=True)), stored, states, before, after, create, history, found
    )


def stored_before(event: StoredEvent, stored: StoredGroups) -> int | None:
    """Returns the group that is read as the state before an event, or None if the event has no group.

    For an accepted state event this is the group below the event's group. For any other event, or if the event's group
    is not stored, it is the event's group.
    """
    group = event.state_group
    if group is None or not event.is_state or event.rejected_reason is not None or group not in stored:
        return group
    return stored.below(group)


def event_of_row(row: StoredEvent, room_id: str, room_version: str) -> ParsedEvent:
    """Builds an event whose JSON is missing or unreadable."""
    columns = row.columns
    if columns is None:  # ``stored_rows`` drops columns only if they agree with parsed JSON
        raise AssertionError(f"{row.event_id} has neither JSON nor columns")
    links = columns.edges, columns.auth or ()
    fields = (row.event_id, room_id, room_version, *columns[:5], *links, *columns[5:8])
    is_authorised = not (row.state_unresolved and row.state_group is None and row.rejected_reason is None)
    return event_of_columns(
        fields, Verdict(row.outlier, row.rejected_reason, row.soft_failed, row.stream_ordering, is_authorised, True)
    )


def _create(rows: StoredRows, events: Iterable[ParsedEvent]) -> ParsedEvent | None:
    # Those in the graph come before outliers, and among these the one that the room's row names.
    creates = [event for event in events if is_create(event)]
    named = [event for event in creates if event.event_id == rows.create_event_id]
    inside = [event for event in creates if not event.outlier]
    return next(iter([*(event for event in named if not event.outlier), *inside, *named, *creates]), None)


# --- states that may have been given ----------------------------------------------------------------------------------


def _given_groups(rows: StoredRows, events: Mapping[str, ParsedEvent], stored: StoredGroups) -> dict[str, int]:
    # The stored group before each event whose state another server may have given: one of its prev events may have been
    # missing when it arrived, or may have had no state.
    by_id = {row.event_id: row for row in rows.events if not row.outlier}
    doubted = _refuted_by_child(by_id, events, stored)
    last_rejected = _last_rejected_later(events)
    found: dict[str, int] = {}
    for row in by_id.values():
        prevs = events[row.event_id].prev_event_ids
        group = stored_before(row, stored)
        if group not in stored or group is None or not prevs or row.event_id in doubted:
            continue
        # If the stored group is that of the only prev event, the rules and a given state agree.
        only_prev = by_id.get(prevs[0]) if len(prevs) == 1 else None
        if only_prev is not None and only_prev.state_group == group:
            continue
        resolved_before = len(prevs) > 1 and row.stream_ordering < last_rejected
        if resolved_before or any(_may_have_come_later(by_id.get(prev), row) for prev in prevs):
            found[row.event_id] = group
    return found


def _last_rejected_later(events: Mapping[str, ParsedEvent]) -> float:
    # The highest position of a rejected event R that an accepted event names as an auth event. R was an outlier when it
    # authorised that event, and was rejected when its place in the graph became known. States that were resolved before
    # stay as they are, although the rules would resolve them differently now. If R is backfilled, its position does not
    # show when it came.
    named = {other for event in events.values() if event.rejected_reason is None for other in event.auth_event_ids}
    found = (events[event_id] for event_id in named if event_id in events)
    places = (event.stream_ordering or 0 for event in found if event.rejected_reason is not None)
    return max((place if place > 0 else inf for place in places), default=0)


def _may_have_come_later(prev: StoredEvent | None, row: StoredEvent) -> bool:
    # or never, or has no state
    if prev is None or prev.state_unresolved:
        return True
    # Backfilled events have negative positions and are stored in any order, so their positions say nothing.
    return min(prev.stream_ordering, row.stream_ordering) < 0 or prev.stream_ordering > row.stream_ordering


def _refuted_by_child(
    by_id: Mapping[str, StoredEvent], events: Mapping[str, ParsedEvent], stored: StoredGroups
) -> set[str]:
    """Returns events whose own group is refuted by the stored state before a child with a single prev event.

    For such a child, state-before(child) must equal state-after(parent). Children that may have arrived first are
    skipped.
    """
    found = set()
    for row in by_id.values():
        prevs = events[row.event_id].prev_event_ids
        prev = by_id.get(prevs[0]) if len(prevs) == 1 else None
        if prev is None or prev.state_group is None or row.state_group is None:
            continue
        before = stored_before(row, stored)
        if not (before in stored and prev.state_group in stored):
            continue
        if stored.digests[before] != stored.digests[prev.state_group] and not _may_have_come_later(prev, row):  # type: ignore[index]
            found.add(prev.event_id)
    return found
