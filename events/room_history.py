"""A whole room's history -> the rows of every table (pure).

The same function serves bulk import on Spark executors and tests. It reads extracted fields only, never JSON text.
Time is linear in events, edges and state changes, but for the merges of different states (``state.resolution`` tells their bound;
each set of groups is resolved once).

First the state at every event is worked out in causal order (``events.room_states``), then the events *arrive* in the
given order: that decides leaves, current state and soft failures. Where a prev event is missing the state is not
known; such an event and those above it are marked ``state_unresolved`` and counted, never guessed.

Positions are indexes into the given events, state groups are numbers from 0: whoever loads the result maps both to
reserved IDs, ascending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from events.arrivals import Arrivals
from events.errors import HistoryError
from events.graph import Leaves, backward_extremities, causal_order, is_accepted
from events.parsing import ParsedEvent
from events.redaction_rules import may_redact
from events.room_states import RoomStates
from events.visibility_ranges import Step, VisibilityRow, in_order, visibility_ranges
from state.room_versions import RoomVersion, room_version

__all__ = ["EVENT_COLUMNS", "RoomResult", "event_row", "room_history"]

EVENT_COLUMNS = (
    "event_id",
    "room_id",
    "type",
    "state_key",
    "sender",
    "topological_ordering",
    "origin_server_ts",
    "membership",
    "redacts",
    "relates_to",
    "outlier",
    "rejected_reason",
    "soft_failed",
    "redacted_by",
    "state_unresolved",
    "state_group",
)
"""Columns of ``RoomResult.events``; ``stream_ordering`` and ``instance_name`` are added by the loader."""
_EVENT_ID, _STATE_GROUP = EVENT_COLUMNS.index("event_id"), EVENT_COLUMNS.index("state_group")
_STATE_UNRESOLVED = EVENT_COLUMNS.index("state_unresolved")
_REJECTED_REASON = EVENT_COLUMNS.index("rejected_reason")


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


def room_history(events: Sequence[ParsedEvent]) -> RoomResult:
    """All rows of one room from its events in the order of their stream orderings.

    Raises ``HistoryError`` when they are of several rooms or versions, or hold an event twice.
    """
    return _History(events).result()


def event_row(event: ParsedEvent, redacted_by: str | None, state_group: int | None) -> tuple[object, ...]:
    """One row of ``EVENT_COLUMNS``; an event of the graph without a group has an unknown state."""
    return (
        event.event_id,
        event.room_id,
        event.type,
        event.state_key,
        event.sender,
        event.depth,
        event.origin_server_ts,
        event.membership,
        event.redacts,
        event.relates_to,
        event.outlier,
        event.rejected_reason,
        event.soft_failed,
        redacted_by,
        not event.outlier and state_group is None,
        state_group,
    )


class _History:
    """One computation: fields that fill up step by step."""

    def __init__(self, events: Sequence[ParsedEvent]) -> None:
        self.room_id, self.version = _only_room(events)
        self.states = RoomStates(self.version, events)
        if len(self.states.events) != len(events):
            raise HistoryError(f"{self.room_id}: an event is given twice; drop duplicates first")
        self.states.assign(events)
        self.by_id = self.states.events
        self.ids = [event.event_id for event in events]
        self.in_graph = {event_id: event for event_id, event in self.by_id.items() if not event.outlier}
        self.create = self.states.create
        self.line: dict[str, int | None] = {}
        """Event -> the group of the current state when it had come in."""
        self.effective: set[str] = set()
        """Redactions that redact something."""

    def result(self) -> RoomResult:
        result = RoomResult(self.room_id, self.version.name)
        if self.create is not None:
            result.creator, result.create_event_id = self.create.sender, self.create.event_id
        leaves, current = self._arrive(result)
        events = [self.by_id[event_id] for event_id in self.ids]
        graph = [event for event in events if not event.outlier]
        redacted_by = self._redactions(graph)
        group_of = self._add_groups(result)
        result.events = [
            event_row(event, redacted_by.get(event.event_id), group_of.get(event.event_id)) for event in events
        ]
        result.edges = [(event.event_id, prev) for event in graph for prev in event.prev_event_ids]
        result.auth = [(event.event_id, list(event.auth_event_ids)) for event in events if event.is_state]
        result.forward_extremities = list(leaves.current)
        result.backward_extremities = backward_extremities(events)
        self._add_current_state(result, current)
        self._add_visibility(result)
        return result

    # --- arrival ------------------------------------------------------------------------------------------------
    def _arrive(self, result: RoomResult) -> tuple[Leaves, int | None]:
        """The events come in one by one; returns the leaves and the group of the current state (null: not known)."""
        arrivals = Arrivals(self.states, Leaves())
        known: int | None = None
        for index, event_id in self._arrivals():
            event = self.in_graph[event_id] = arrivals.add(self.by_id[event_id])
            self.line[event_id] = arrivals.current
            if not event.backfilled:
                known = self._note_changes(result, index, known, arrivals.current)
        current = arrivals.finish()
        if known is not None:
            self._note_changes(result, self._last_live(), known, current)
        for event_id in reversed(self.ids):  # whoever goes on with the room begins with this line
            if event_id in self.line and is_accepted(self.by_id[event_id]) and not self.by_id[event_id].backfilled:
                self.line[event_id] = current
                break
        return arrivals.leaves, current

    def _note_changes(self, result: RoomResult, index: int, known: int | None, current: int | None) -> int | None:
        """Write down how the current state changed with an event; returns the group that is known now."""
        if current is None or current == known:
            return known
        changes = self.states.builder.changes_between(known, current)
        result.state_deltas += [(index, *key, new, old) for key, (old, new) in changes.items()]
        return current

    def _last_live(self) -> int:
        live = [n for n, e in enumerate(self.ids) if e in self.in_graph and not self.in_graph[e].backfilled]
        return live[-1]

    def _arrivals(self) -> Iterator[tuple[int, str]]:
        """Events of the graph in the order in which they count, each with the highest index so far.

        That is the given order, but an event waits for its prev events. Backfilled ones, of which nobody knows when they
        came, are last.
        """
        parts: dict[bool, list[tuple[int, ParsedEvent]]] = {False: [], True: []}
        for index, event_id in enumerate(self.ids):
            if (event := self.in_graph.get(event_id)) is not None:
                parts[event.backfilled].append((index, event))
        latest = 0
        for part in parts.values():
            order, left = causal_order([event for _, event in part])
            for number in (*order, *left):
                index, event = part[number]
                latest = max(latest, index)
                yield latest, event.event_id

    def _add_current_state(self, result: RoomResult, current: int | None) -> None:
        if current is None:
            result.current_state_unresolved = True
            result.state_deltas = []
            return
        for (event_type, state_key), event_id in self.states.builder.expand(current).items():
            found = self.by_id.get(event_id)
            result.current_state.append((event_type, state_key, event_id, found.membership if found else None))

    def _add_visibility(self, result: RoomResult) -> None:
        """Ranges, or none at all where the state at an accepted event is not known."""
        steps = []
        withheld = []
        for index, event_id in enumerate(self.ids):
            event = self.by_id[event_id]
            if is_accepted(event):
                if event.redacts is not None and event_id not in self.effective:
                    withheld.append(VisibilityRow(None, "withheld", index, index))
                after = self.states.after.get(event_id)
                line = None if event.backfilled else self.line.get(event_id)
                if after is None:
                    result.visibility_unresolved = True
                    return
                steps.append(
                    Step(index, event, self.states.before.get(event_id), after, after if line is None else line)
                )
        result.visibility = in_order([*visibility_ranges(steps, self.states.builder, self.by_id), *withheld])

    def _add_groups(self, result: RoomResult) -> dict[str, int]:
        """The groups before and after events, numbered anew: those of current states on the way are not stored.

        Returns the group after each event.
        """
        builder, after = self.states.builder, self.states.after
        kept = sorted(builder.kept({*after.values(), *self.states.before.values()}))
        new = {number: place for place, number in enumerate(kept)}
        result.groups = [
            (new[number], None if prev is None else new[prev], new[chain], hops, keys, rows)
            for number, prev, chain, hops, keys, rows in builder.group_rows(kept)
        ]
        result.group_deltas = [
            (new[chain], new[group], event_type, state_key, event_id)
            for chain, group, event_type, state_key, event_id in builder.delta_rows(kept)
        ]
        return {event_id: new[group] for event_id, group in after.items()}

    # --- redactions ---------------------------------------------------------------------------------------------
    def _redactions(self, graph: Sequence[ParsedEvent]) -> dict[str, str]:
        """Target -> a redaction that is known to apply to it, the first one where there are several."""
        found: dict[str, str] = {}
        for redaction in graph:
            target = self.by_id.get(redaction.redacts or "")
            if target is not None and is_accepted(redaction) and self._applies(redaction, target):
                found.setdefault(target.event_id, redaction.event_id)
                self.effective.add(redaction.event_id)
        return found

    def _applies(self, redaction: ParsedEvent, target: ParsedEvent) -> bool:
        if may_redact(redaction, target, self.version, None):
            return True
        before = self.states.before.get(redaction.event_id)
        if before is None:
            return False
        levels = self.states.rules.levels(self.states.state(before), self.create)
        return may_redact(redaction, target, self.version, levels)


def _only_room(events: Sequence[ParsedEvent]) -> tuple[str, RoomVersion]:
    rooms = {(event.room_id, event.room_version) for event in events}
    if len(rooms) != 1:
        shown = ", ".join(sorted(f"{room} (version {version})" for room, version in rooms)[:5])
        raise HistoryError(f"the events are of {len(rooms)} rooms or versions instead of one: {shown}")
    room_id, name = rooms.pop()
    return room_id, room_version(name)
