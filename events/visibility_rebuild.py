"""The ranges of a stored room made anew: after a gap was filled, after an upgrade, or to check them.

They are worked out from what is stored, states of groups included, so states that were given from outside count. Takes time
and memory in proportion to the room's events and state changes. Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connections

from events.arrivals import Arrivals
from events.graph import Leaves, causal_order, is_accepted
from events.models import EventVisibility, Room
from events.parsing import ParsedEvent
from events.redaction_rules import may_redact
from events.room_states import RoomStates, Stored
from events.stored_states import parsed_events
from events.visibility_ranges import Step, VisibilityRanges, VisibilityRow, in_order
from state.deltas import GroupBuilder, StateKey
from state.room_versions import room_version

__all__ = ["accepted_places", "ranges_anew", "rebuild_visibility", "stored_ranges", "tell_the_same"]

#: A room's events with a place in the graph, as they came.
_EVENTS = """
SELECT e.event_id, e.room_id, e.type, e.state_key, e.sender, e.topological_ordering, e.origin_server_ts, e.membership, e.redacts,
  e.soft_failed, e.rejected_reason, e.stream_ordering, e.state_group,
  ARRAY(SELECT edge.prev_event_id FROM events_eventedge edge WHERE edge.event_id = e.event_id)
FROM events_event e WHERE e.room_id = %(room)s AND NOT e.outlier ORDER BY e.stream_ordering
"""
_STATE_EVENTS = """
SELECT event_id, outlier, soft_failed, rejected_reason, stream_ordering FROM events_event
WHERE room_id = %(room)s AND state_key IS NOT NULL
"""
_TARGETS = """
SELECT e.event_id, e.type, e.sender FROM events_event redaction JOIN events_event e ON e.event_id = redaction.redacts
WHERE redaction.room_id = %(room)s AND e.room_id = %(room)s
"""
_GROUPS = """
SELECT g.id, g.prev_group, d.type, d.state_key, d.event_id FROM state_stategroup g
LEFT JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id
WHERE g.room_id = %(room)s ORDER BY g.id
"""
_ACCEPTED = """
SELECT stream_ordering FROM events_event
WHERE room_id = %s AND NOT outlier AND NOT soft_failed AND rejected_reason IS NULL ORDER BY stream_ordering
"""
_DELETE = "DELETE FROM events_eventvisibility WHERE room_id = %s"


def rebuild_visibility(room_id: str, using: str = "default") -> bool:
    """Write the room's ranges anew; false where they cannot be known yet, and then it has none.

    ``Room.visibility_unresolved`` says the same afterwards.
    """
    rows = ranges_anew(room_id, using)
    with connections[using].cursor() as cursor:
        cursor.execute(_DELETE, [room_id])
    EventVisibility.objects.using(using).bulk_create(
        EventVisibility(room_id=room_id, user_id=row.user_id, kind=row.kind, first=row.first, last=row.last)
        for row in rows or ()
    )
    Room.objects.using(using).filter(pk=room_id).update(visibility_unresolved=rows is None)
    return rows is not None


def stored_ranges(room_id: str, using: str = "default") -> list[VisibilityRow]:
    """The ranges that are stored, by stream positions."""
    rows = EventVisibility.objects.using(using).filter(room_id=room_id)
    return in_order(VisibilityRow(*row) for row in rows.values_list("user_id", "kind", "first", "last"))


def tell_the_same(one: Sequence[VisibilityRow], other: Sequence[VisibilityRow], places: Sequence[int]) -> bool:
    """Whether ranges show the same accepted events, at ``places``, to everybody.

    They can be laid out differently: backfilled batches have ranges of their own, and with very many leaves the line is worked
    out once a batch.
    """
    return _told(one, places) == _told(other, places)


def accepted_places(room_id: str, using: str = "default") -> list[int]:
    """The positions of a room's accepted events, ascending."""
    with connections[using].cursor() as cursor:
        cursor.execute(_ACCEPTED, [room_id])
        return [place for (place,) in cursor.fetchall()]


_OWN = frozenset({"joined", "invited", "shown", "hidden"})


def _told(rows: Sequence[VisibilityRow], places: Sequence[int]) -> dict[tuple[str | None, str], list[tuple[int, int]]]:
    """What rows cover in numbers of events, merged: of the room each kind, of a user what they make up together."""
    spans: dict[tuple[str | None, str], list[tuple[int, int]]] = {}
    hidden: dict[str | None, set[int]] = {}
    for row in rows:
        first = bisect_left(places, row.first)
        last = len(places) - 1 if row.last is None else bisect_right(places, row.last) - 1
        if row.kind == "hidden":
            hidden.setdefault(row.user_id, set()).add(first)
        elif first <= last:
            spans.setdefault((row.user_id, "own" if row.kind in _OWN else row.kind), []).append((first, last))
    told = {
        key: _merged(found, hidden.get(key[0], set()) if key[1] == "own" else set()) for key, found in spans.items()
    }
    return {key: found for key, found in told.items() if found}


def _merged(spans: list[tuple[int, int]], hidden: Collection[int]) -> list[tuple[int, int]]:
    """Ascending spans that do not touch, without the hidden numbers."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    for number in sorted(hidden):
        cut = [(number + 1, last) for first, last in found if first <= number < last]
        ended = [(first, number - 1) if first <= number <= last else (first, last) for first, last in found]
        found = sorted([*ended, *cut])
    return [(first, last) for first, last in found if first <= last]


def ranges_anew(room_id: str, using: str = "default") -> list[VisibilityRow] | None:
    """What the ranges should be, by stream positions; null where the state at a live event is not known."""
    return _StoredHistory(room_id, using).ranges()


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the tables have of a room."""

    groups: list[tuple[int, int | None, str | None, str, str | None]]
    verdicts: dict[str, Sequence[Any]]
    """Of every state event."""
    targets: list[tuple[str, str, str]]
    events: list[tuple[Any, ...]]

    @classmethod
    def of(cls, room_id: str, using: str) -> _Rows:
        found = []
        with connections[using].cursor() as cursor:
            for query in (_GROUPS, _STATE_EVENTS, _TARGETS, _EVENTS):
                cursor.execute(query, {"room": room_id})
                found.append(cursor.fetchall())
        groups, verdicts, targets, events = found
        return cls(groups, {event_id: about for event_id, *about in verdicts}, targets, events)

    def state_events(self, using: str) -> dict[str, ParsedEvent]:
        """The state events with their content, which the rules look at."""
        parsed = parsed_events(list(self.verdicts), using)
        return {event_id: _with_facts(event, *self.verdicts[event_id]) for event_id, event in parsed.items()}


@dataclass(slots=True)
class _Runs:
    """Ranges of backfilled events: none goes on over an event without state, which may get one of its own later."""

    builder: GroupBuilder
    events: dict[str, ParsedEvent]
    rows: list[VisibilityRow] = field(default_factory=list)
    run: VisibilityRanges | None = None

    def add(self, step: Step | None) -> None:
        if step is None:
            self.end()
            return
        self.run = self.run or VisibilityRanges(self.builder, self.events)
        self.run.add(step)

    def end(self) -> None:
        self.rows += self.run.ended() if self.run is not None else ()
        self.run = None


class _StoredHistory:
    """A room as stored, read once."""

    def __init__(self, room_id: str, using: str) -> None:
        room = Room.objects.using(using).get(pk=room_id)
        self._version = room_version(room.room_version)
        rows = _Rows.of(room_id, using)
        builder, numbers, below = _builder(rows.groups)
        content = rows.state_events(using)
        graph = [_event(row, room.room_version) for row in rows.events]
        self._graph = [content.get(event.event_id, event) for event in graph]
        self._targets = {event_id: (event_type, sender) for event_id, event_type, sender in rows.targets}
        group_of: dict[str, int] = {row[0]: row[-2] for row in rows.events if row[-2] is not None}
        after = {event_id: numbers[group] for event_id, group in group_of.items()}
        events: dict[str, ParsedEvent] = {**content, **{event.event_id: event for event in self._graph}}
        create = content.get(room.create_event_id or "")
        self._states = RoomStates(self._version, [], Stored(events, create, builder, after, lambda _states: None))
        for event in self._graph:
            group = group_of.get(event.event_id)
            before = below.get(group or 0) if event.is_state and is_accepted(event) else group
            if before is not None:
                self._states.before[event.event_id] = numbers[before]

    def ranges(self) -> list[VisibilityRow] | None:
        """The rows, or null."""
        lines, events = self._lines(), dict(self._states.events)
        old = _Runs(self._states.builder, events)
        live = VisibilityRanges(self._states.builder, events)
        for event in self._graph:
            if not is_accepted(event):
                continue
            step = self._step(event, lines.get(event.event_id))
            if event.backfilled:
                old.add(step)
            elif step is None:
                return None
            else:
                live.add(step)
        old.end()
        return in_order([*old.rows, *live.rows, *live.still_open(), *self._withheld()])

    def _lines(self) -> dict[str, int | None]:
        """Live event -> the group of the current state when it had come in; an event waits for its prev events."""
        arrivals = Arrivals(self._states, Leaves())
        found: dict[str, int | None] = {}
        for backfilled in (False, True):
            part = [event for event in self._graph if event.backfilled is backfilled]
            order, left = causal_order(part)
            for number in (*order, *left):
                arrivals.add(part[number])
                if not backfilled:
                    found[part[number].event_id] = arrivals.current
        current = arrivals.finish()
        last = next((event for event in reversed(self._graph) if is_accepted(event) and not event.backfilled), None)
        if last is not None and current is not None:  # whoever goes on with the room begins with this line
            found[last.event_id] = current
        return found

    def _step(self, event: ParsedEvent, line: int | None) -> Step | None:
        """Null for an event without state."""
        after = self._states.after.get(event.event_id)
        if after is None or event.stream_ordering is None:
            return None
        before = self._states.before.get(event.event_id)
        return Step(event.stream_ordering, event, before, after, after if line is None else line)

    def _withheld(self) -> list[VisibilityRow]:
        """Redactions that redact nothing."""
        found = []
        for event in self._graph:
            place = event.stream_ordering
            if place is None or event.redacts is None or not is_accepted(event):
                continue
            if not self._redacts_something(event):
                found.append(VisibilityRow(None, "withheld", place, place))
        return found

    def _redacts_something(self, redaction: ParsedEvent) -> bool:
        target_id = redaction.redacts or ""
        if target_id not in self._targets:
            return False
        event_type, sender = self._targets[target_id]
        target = replace(redaction, event_id=target_id, type=event_type, sender=sender)
        before = self._states.before.get(redaction.event_id)
        levels = (
            self._states.rules.levels(self._states.state(before), self._states.create) if before is not None else None
        )
        return may_redact(redaction, target, self._version, levels)


def _with_facts(
    event: ParsedEvent, outlier: bool, soft_failed: bool, rejected_reason: str | None, place: int
) -> ParsedEvent:
    return replace(
        event,
        json=b"",
        outlier=outlier,
        soft_failed=soft_failed,
        rejected_reason=rejected_reason,
        stream_ordering=place,
        rejection_given=True,
        soft_failure_given=True,
    )


def _event(row: Sequence[Any], version: str) -> ParsedEvent:
    """An event from its columns, without content: all that is needed of messages."""
    event_id, room_id, kind, key, sender, depth, at, membership, redacts, soft_failed, reason, place, _, prevs = row
    event = ParsedEvent(
        event_id=event_id,
        room_id=room_id,
        room_version=version,
        type=kind,
        state_key=key,
        sender=sender,
        depth=depth,
        origin_server_ts=at,
        prev_event_ids=tuple(prevs),
        auth_event_ids=(),
        membership=membership,
        redacts=redacts,
        relates_to=None,
        content_hash_matches=True,
        json=b"",
        content={},
    )
    return _with_facts(event, False, soft_failed, reason, place)


def _builder(
    rows: Sequence[tuple[int, int | None, str | None, str, str | None]],
) -> tuple[GroupBuilder, dict[int, int], dict[int, int | None]]:
    """The stored groups in memory: the builder, its number of each group, and the group below each."""
    changes: dict[int, dict[StateKey, str | None]] = {}
    below: dict[int, int | None] = {}
    for group, prev, event_type, state_key, event_id in rows:
        below[group] = prev
        delta = changes.setdefault(group, {})
        if event_type is not None:
            delta[event_type, state_key] = event_id
    builder, numbers = GroupBuilder(), dict[int, int]()
    for group, delta in changes.items():
        prev = below[group]
        if prev is None:
            numbers[group] = builder.add_full(
                {key: event_id for key, event_id in delta.items() if event_id is not None}
            )
        else:
            numbers[group] = builder.add(numbers[prev], delta)
    return builder, numbers, below
