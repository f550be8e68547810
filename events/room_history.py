"""A whole room's history -> the rows of every table (pure).

The same function serves bulk import on Spark executors and, event by event, the live path's tests. It reads
extracted fields only, never JSON text, and takes time linear in events, edges and state changes.

State is computed where it is *known*: where all prev events have one state group. Where groups differ the state
would have to be resolved; such an event and its descendants are marked ``state_unresolved`` and counted, never
guessed.

Positions are indexes into the given events, state groups are numbers from 0: whoever loads the result maps both to
reserved IDs, ascending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from events.errors import HistoryError
from events.graph import Leaves, backward_extremities, causal_order, is_accepted
from events.parsing import ParsedEvent
from events.redaction_rules import may_redact
from events.visibility_ranges import VisibilityRow, visibility_ranges
from state.deltas import GroupBuilder
from state.power_levels import PowerLevels
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
)
"""Columns of ``RoomResult.events``; ``stream_ordering`` and ``instance_name`` are added by the loader."""


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
    """``EVENT_COLUMNS``, in the order of the given events."""
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
    event_groups: list[tuple[str, int]] = field(default_factory=list)
    """(event_id, group)."""
    current_state: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    """(type, state_key, event_id, membership); none when the room's current state is unresolved."""
    state_deltas: list[tuple[int, str, str, str | None, str | None]] = field(default_factory=list)
    """(index, type, state_key, event_id, prev_event_id): how the current state grew.

    None when it is unresolved, and none for backfilled events, which never change it.
    """
    visibility: list[VisibilityRow] = field(default_factory=list)
    """None when ``visibility_unresolved``."""

    @property
    def unresolved_events(self) -> int:
        """How many events have no known state."""
        return sum(bool(row[-1]) for row in self.events)


def room_history(events: Sequence[ParsedEvent]) -> RoomResult:
    """All rows of one room from its events in the order of their stream orderings.

    Raises ``HistoryError`` when they are of several rooms or versions, or hold an event twice.
    """
    return _History(events).result()


def event_row(event: ParsedEvent, redacted_by: str | None, state_unresolved: bool) -> tuple[object, ...]:
    """One row of ``EVENT_COLUMNS``."""
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
        state_unresolved,
    )


class _History:
    """One computation: fields that fill up step by step."""

    def __init__(self, events: Sequence[ParsedEvent]) -> None:
        self.events = events
        self.room_id, self.version = _only_room(events)
        self.by_id = {event.event_id: event for event in events}
        if len(self.by_id) != len(events):
            raise HistoryError(f"{self.room_id}: an event is given twice; drop duplicates first")
        self.graph = [event for event in events if not event.outlier]
        self.in_graph = {event.event_id: event for event in self.graph}
        self.create = next((event for event in self.graph if _is_create(event)), None)
        self.builder = GroupBuilder()
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}

    def result(self) -> RoomResult:
        self._assign_groups()
        leaves = Leaves(self.in_graph)
        for event in self.graph:
            leaves.add(event)
        result = RoomResult(self.room_id, self.version.name)
        if self.create is not None:
            result.creator, result.create_event_id = self.create.sender, self.create.event_id
        redacted_by = self._redactions()
        result.events = [
            event_row(event, redacted_by.get(event.event_id), not event.outlier and event.event_id not in self.after)
            for event in self.events
        ]
        result.edges = [(event.event_id, prev) for event in self.graph for prev in event.prev_event_ids]
        result.auth = [(event.event_id, list(event.auth_event_ids)) for event in self.events if event.is_state]
        result.forward_extremities = list(leaves.current)
        result.backward_extremities = backward_extremities(self.events)
        result.groups = list(self.builder.group_rows())
        result.group_deltas = list(self.builder.delta_rows())
        result.event_groups = [(e.event_id, self.after[e.event_id]) for e in self.graph if e.event_id in self.after]
        self._add_current_state(result)
        ranges = visibility_ranges(self.events) if not result.backward_extremities else None
        result.visibility_unresolved = ranges is None
        result.visibility = ranges or []
        return result

    # --- state groups -------------------------------------------------------------------------------------------
    def _assign_groups(self) -> None:
        """Walk in causal order; where the state before is not known there is no group, nor for those above."""
        order, _ = causal_order(self.graph)
        for number in order:
            event = self.graph[number]
            if event is self.create:
                self.after[event.event_id] = self.builder.add_full({(event.type, ""): event.event_id})
                continue
            before = self._group_before(event)
            if before is None:
                continue
            self.before[event.event_id] = before
            if event.state_key is None or event.rejected_reason is not None:
                self.after[event.event_id] = before
            else:
                changes = {(event.type, event.state_key): event.event_id}
                self.after[event.event_id] = self.builder.add(before, changes)

    def _group_before(self, event: ParsedEvent) -> int | None:
        """The one group that all prev events have, or null when there is none such."""
        groups = {self.after.get(prev) for prev in event.prev_event_ids}
        return groups.pop() if len(groups) == 1 else None

    # --- current state ------------------------------------------------------------------------------------------
    def _add_current_state(self, result: RoomResult) -> None:
        groups = _Agreement()
        for event_id in result.forward_extremities:
            groups.count(self.after.get(event_id), 1)
        current = groups.common()
        if current is None:
            result.current_state_unresolved = True
            return
        for (event_type, state_key), event_id in self.builder.expand(current).items():
            membership = self.by_id[event_id].membership
            result.current_state.append((event_type, state_key, event_id, membership))
        result.state_deltas = self._state_deltas()

    def _state_deltas(self) -> list[tuple[int, str, str, str | None, str | None]]:
        """Replay the arrivals: whenever the leaves agree on another group, the difference is a change."""
        rows: list[tuple[int, str, str, str | None, str | None]] = []
        leaves, groups = Leaves(self.in_graph), _Agreement()
        known: int | None = None
        for index, event in enumerate(self.events):
            if event.outlier:
                continue
            is_leaf, gone = leaves.add(event)
            for event_id in gone:
                groups.count(self.after.get(event_id), -1)
            if is_leaf:
                groups.count(self.after.get(event.event_id), 1)
            group = groups.common() if not event.backfilled else None
            if group is not None and group != known:
                changes = self.builder.changes_between(known, group)
                rows += [(index, *key, new, old) for key, (old, new) in changes.items()]
                known = group
        return rows

    # --- redactions ---------------------------------------------------------------------------------------------
    def _redactions(self) -> dict[str, str]:
        """Target -> a redaction that is known to apply to it, the first one where there are several."""
        found: dict[str, str] = {}
        for redaction in self.graph:
            target = self.in_graph.get(redaction.redacts or "")
            if target is not None and is_accepted(redaction) and self._applies(redaction, target):
                found.setdefault(target.event_id, redaction.event_id)
        return found

    def _applies(self, redaction: ParsedEvent, target: ParsedEvent) -> bool:
        if may_redact(redaction, target, self.version, None):
            return True
        before = self.before.get(redaction.event_id)
        return before is not None and may_redact(redaction, target, self.version, self._power_levels(before))

    def _power_levels(self, group: int) -> PowerLevels:
        event_id = self.builder.lookup(group, ("m.room.power_levels", ""))
        content = self.by_id[event_id].content if event_id is not None else None
        creators = set()
        if self.create is not None:
            creators.add(self.create.sender)
            additional = self.create.content.get("additional_creators")
            if self.version.room_id_is_create_hash and isinstance(additional, list):
                creators.update(user for user in additional if isinstance(user, str))
        return PowerLevels(self.version, content, creators)


class _Agreement:
    """How many leaves have which group (null: unknown), so that asking for the common one takes no search."""

    def __init__(self) -> None:
        self._counts: dict[int | None, int] = {}

    def count(self, group: int | None, change: int) -> None:
        """One leaf more or less."""
        left = self._counts.pop(group, 0) + change
        if left:
            self._counts[group] = left

    def common(self) -> int | None:
        """The group that all leaves have; null when they differ or it is unknown."""
        return next(iter(self._counts)) if len(self._counts) == 1 else None


def _only_room(events: Sequence[ParsedEvent]) -> tuple[str, RoomVersion]:
    rooms = {(event.room_id, event.room_version) for event in events}
    if len(rooms) != 1:
        shown = ", ".join(sorted(f"{room} (version {version})" for room, version in rooms)[:5])
        raise HistoryError(f"the events are of {len(rooms)} rooms or versions instead of one: {shown}")
    room_id, name = rooms.pop()
    return room_id, room_version(name)


def _is_create(event: ParsedEvent) -> bool:
    """True for an event that may begin a room."""
    return (
        event.type == "m.room.create"
        and event.state_key == ""
        and not event.prev_event_ids
        and event.rejected_reason is None
    )
