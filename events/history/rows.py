"""Computes the rows of every table from a whole room's history (pure).

The class reads extracted fields only, never JSON text, and one chunk of events at a time
(``events.history.chunked_walk``). The size of a chunk does not change the rows. Time is linear in events, edges and
state changes, except for state resolution, which runs once for each set of groups.

First the state at every event is computed in causal order (``events.room.state_assignment``). Then the events *arrive*
in the given order, except that an event waits for its prev events. The arrival decides forward extremities, current
state and soft failures. Visibility ranges follow the given order, without this exception. If a prev event is missing,
the state is unknown: the event and all events above it are marked ``state_unresolved`` and counted.

The events of a *stored* room have arrived already, in the given order, and have their verdicts. States that other
servers gave come from the ``RoomStates`` of the caller. So a check and a rebuild of stored rows use this class, too.

Positions are indexes into the given events, and state groups are numbers from 0. The caller replaces positions and
state groups by reserved IDs, in ascending order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from events.columns import event_fields, is_unresolved
from events.format.parsing import ParsedEvent
from events.history.chunked_walk import (
    ACCEPTED,
    BACKFILLED,
    OUTLIER,
    REJECTED,
    SOFT_FAILED,
    SOFT_FAILURE_GIVEN,
    EventSource,
    MakeStates,
    walk_room,
)
from events.history.event_numbers import NumberSet
from events.room.extremities import Arriving, ExtremityTracker, ForwardExtremities
from events.room.graph import Node, numbers_in_order
from events.room.state_assignment import RoomStates
from events.visibility.ranges import BEFORE_LIVE, Step, VisibilityRow, in_order, visibility_rows
from state.groups.deltas import StateKey
from state.rules.auth_selection import State

EVENTS_PER_CHUNK = 20_000
_EVENTS_PER_PART = 5_000


class EventPart(NamedTuple):
    """Consecutive events of a room: the number of the first event, the events with their verdicts, and the events' rows."""

    first: int
    events: Sequence[ParsedEvent]
    columns: Sequence[Sequence[object]]
    """The values of the ``EVENT_COLUMNS``, column by column. ``state_group`` is a group number."""


@dataclass(slots=True)
class _Arriving:
    # ``event_id`` is the event's number, not its Matrix ID
    event_id: int
    prev_event_ids: tuple[int, ...]
    rejected_reason: str | None
    soft_failed: bool
    soft_failure_given: bool
    backfilled: bool
    outlier: bool = False


class _Groups:
    # number of an event -> the state group after it
    def __init__(self, groups: array[int]) -> None:
        self._groups = groups

    def get(self, number: int, /) -> int | None:
        group = self._groups[number] if number < len(self._groups) else -1
        return None if group < 0 else group


class _Extremities(ForwardExtremities[int]):
    def __init__(self, history: RoomHistory, limit: int, *, live: bool) -> None:
        super().__init__(reached=NumberSet(limit), live=live)
        self._history = history

    def find(self, event_ids: Collection[int]) -> Iterator[Node[int]]:
        return self._history.transparent_among(event_ids)

    def reaches(self, node: Node[int]) -> Sequence[int]:
        return self._history.reached(node.event_id, node.prev_event_ids)


class RoomHistory:
    """The rows of one room. Everything is computed at the beginning, and each kind of row can be read once."""

    def __init__(
        self,
        source: EventSource,
        chunk: int = EVENTS_PER_CHUNK,
        watch: Callable[[int], None] = lambda _: None,
        make_states: MakeStates = RoomStates,
        *,
        stored: bool = False,
    ) -> None:
        """Computes everything.

        Raises ``HistoryError`` if an event occurs twice.

        ``watch`` is called from time to time with the number of events done so far. ``stored``: the events are those of
        a stored room, in stream order.
        """
        self.room_id, self.version = source.room_id, source.version
        self._source, self._stored_room = source, stored
        walk = self.walk = walk_room(source, chunk, watch, make_states)
        self.states = walk.states
        self._flags = walk.flags
        self.creator = walk.create.sender if walk.create is not None else None
        self.create_event_id = walk.create.event_id if walk.create is not None else None
        self._current_on_arrival = array("i", [-1]) * walk.count
        """Number of a live event -> group of the current state right after the event arrived, or -1."""
        self._changes = array("q")
        """Three numbers for each change of the current state: index of the event, group before or -1, group after."""
        self.current = self._arrive()
        """The group of the current state. None: not known."""
        self.redacted: dict[int, list[int]] = {}
        """Number of a redacted event -> its redactions that apply, in the given order."""
        self._withheld = self._redact()

    # --- figures ------------------------------------------------------------------------------------------------
    @property
    def current_state_unresolved(self) -> bool:
        return self.current is None

    @property
    def visibility_unresolved(self) -> bool:
        # A stored room may have backfilled events without a state: ranges leave them out until they get one.
        unknown = ACCEPTED | BACKFILLED if self._stored_room else ACCEPTED
        return any(group < 0 and not flag & unknown for group, flag in zip(self.walk.after, self._flags, strict=True))

    # --- arrival ------------------------------------------------------------------------------------------------
    def _arrive(self) -> int | None:
        walk = self.walk
        live = self._last_live(ACCEPTED) >= 0
        tracker = self._tracker(live=live)
        known: int | None = None
        for index, number in self._live():
            self._add(tracker, number)
            group = tracker.current
            if group is not None:
                self._current_on_arrival[number] = group
                known = self._record_change(index, known, group)
        for number in self._in_causal_order(BACKFILLED) if not live else ():
            self._add(tracker, number)
        current = tracker.finish()
        # Not the object itself: it refers to this one, and only the garbage collector, which pauses while rooms are computed,
        # would free both.
        self._extremities = list(tracker.extremities.current)
        if known is not None:
            self._record_change(self._last_live(OUTLIER), known, current)
        if live and not walk.in_order and not self._stored_room:
            tracker = self._tracker(live=True)
            for number in self._numbers(0):
                self._add(tracker, number, final=True)
                self._current_on_arrival[number] = -1 if tracker.current is None else tracker.current
        if (last := self._last_live(ACCEPTED)) >= 0:  # the next batch in this room continues from this state
            self._current_on_arrival[last] = -1 if current is None else current
        return current

    def _tracker(self, *, live: bool) -> ExtremityTracker[int]:
        walk = self.walk
        limit = walk.count + len(walk.missing)
        extremities = _Extremities(self, limit, live=live)
        return ExtremityTracker(walk.states, extremities, NumberSet(limit), _Groups(walk.after), self._fails)

    def _add(self, tracker: ExtremityTracker[int], number: int, *, final: bool = False) -> None:
        # ``final``: it is known whether the event is soft-failed
        prevs = self.walk.prevs.of(number)
        reaches_all = not self._stored_room or len(self.reached(number, prevs)) == len(prevs)
        if reaches_all and not self._flags[number] & ACCEPTED and tracker.add_on_extremities(number, prevs):
            return
        event = self._arriving(number)
        if not final and tracker.soft_fails(event):
            event.soft_failed = True
            self._flags[number] |= SOFT_FAILED
        tracker.add_with_verdict(event)

    def reached(self, number: int, prevs: Sequence[int]) -> Sequence[int]:
        """Returns the prev events that an event reaches."""
        # States were given only to events of stored rooms. There, of backfilled events the order of arrival is not known.
        if not self._stored_room:
            return prevs
        flags, before = self._flags, self.walk.before[number]
        earlier = [
            prev for prev in prevs if prev < number and not (flags[prev] | flags[number]) & (OUTLIER | BACKFILLED)
        ]
        return self.states.reached(prevs, None if before < 0 else before, earlier, _Groups(self.walk.after))

    def transparent_among(self, numbers: Collection[int]) -> Iterator[Node[int]]:
        """Yields those of the events that are in the graph and do not count."""
        flags = self._flags
        for number in numbers:
            if number < len(flags) and flags[number] & (ACCEPTED | BACKFILLED) and not flags[number] & OUTLIER:
                yield self._arriving(number)

    def _arriving(self, number: int) -> _Arriving:
        flag = self._flags[number]
        return _Arriving(
            number,
            self.walk.prevs.of(number),
            "" if flag & REJECTED else None,
            bool(flag & SOFT_FAILED),
            bool(flag & SOFT_FAILURE_GIVEN),
            bool(flag & BACKFILLED),
        )

    def _fails(self, event: Arriving[int], current: State) -> bool:
        return self.states.event_auth.soft_fails(self.walk.event(event.event_id), current)

    def _record_change(self, index: int, known: int | None, current: int | None) -> int | None:
        # An unknown state (None) is not recorded. Returns the last known group.
        if current is None or current == known:
            return known
        self._changes.extend((index, -1 if known is None else known, current))
        return current

    def _last_live(self, without: int) -> int:
        # without any of these flags, and not backfilled; -1 if there is none
        unwanted = without | BACKFILLED
        return next((n for n in range(self.walk.count - 1, -1, -1) if not self._flags[n] & unwanted), -1)

    def _live(self) -> Iterator[tuple[int, int]]:
        # (highest number that has arrived so far, number), in the given order, except that events wait for their prev
        # events. In a stored room no event waits. Example: A is Bob's leave, and arrived before its prev event, a message M.
        # Then M arrived, and then B, whose prev event is A. If A were processed after M, the current state would go back to
        # Bob's membership at M, and Bob's cut would begin only at B.
        latest = 0
        for number in self._numbers(0) if self._stored_room else self._in_causal_order(0):
            latest = max(latest, number)
            yield latest, number

    def _numbers(self, backfilled: int) -> array[int]:
        mask = OUTLIER | BACKFILLED
        return array("q", (n for n, flag in enumerate(self._flags) if flag & mask == backfilled))

    def _in_causal_order(self, backfilled: int) -> Iterator[int]:
        # each after its prev events
        numbers = self._numbers(backfilled)
        order, left = numbers, array("q")
        if not self.walk.in_order:
            order, left = numbers_in_order(self.walk.count, self.walk.prevs.of, numbers)
        for part in (order, left):
            yield from part

    # --- redactions ---------------------------------------------------------------------------------------------
    def _redact(self) -> array[int]:
        # Returns those without effect.
        found = self.walk.redactions
        places = range(0, len(found), 3)
        withheld = array("q")
        for at in places if self.walk.in_order else sorted(places, key=found.__getitem__):
            redaction, target, applies = found[at : at + 3]
            if self._flags[redaction] & ACCEPTED:
                continue
            if not applies:
                withheld.append(redaction)
            else:
                self.redacted.setdefault(target, []).append(redaction)
        return withheld

    # --- rows ---------------------------------------------------------------------------------------------------
    def events(self) -> Iterator[EventPart]:
        for numbers in self.walk.chunks(range(self.walk.count)):
            for start in range(0, len(numbers), _EVENTS_PER_PART):
                yield self._part(numbers[start : start + _EVENTS_PER_PART])

    def _part(self, numbers: Sequence[int]) -> EventPart:
        first, end, flags, new = numbers[0], numbers[-1] + 1, self._flags, self._new_groups
        events = [
            replace(event, soft_failed=True) if flags[number] & SOFT_FAILED else event
            for number, event in zip(numbers, self.walk.with_verdicts(numbers), strict=True)
        ]
        # The first redaction that applies counts.
        redacted_by = [found[0] if (found := self.redacted.get(number)) else None for number in numbers]
        redactions = sorted({by for by in redacted_by if by is not None})
        names = dict(zip(redactions, self._source.names(redactions), strict=True))
        groups = [None if group < 0 else new[group] for group in self.walk.after[first:end]]
        unresolved = [*map(is_unresolved, events, groups)]
        of_events = zip(*map(event_fields, events), strict=True)
        return EventPart(
            first, events, [*of_events, [by if by is None else names[by] for by in redacted_by], unresolved, groups]
        )

    def forward_extremities(self) -> Iterator[str]:
        return self._names(self._extremities)

    def state_after(self, event_ids: Collection[str]) -> Mapping[StateKey, str] | None:
        """Returns the state to which the states after some events resolve. Returns None if one of them is unknown."""
        walk = self.walk
        groups = [walk.after[number] for number, name in enumerate(self._source.event_ids()) if name in event_ids]
        merged = walk.states.merged(None if group < 0 else group for group in groups)
        return None if merged is None or len(groups) < len(event_ids) else walk.states.builder.expand(merged)

    def backward_extremities(self) -> Iterator[str]:
        """Returns the missing prev events of events in the graph, each once."""
        walk, missing = self.walk, self.walk.missing
        gaps = dict.fromkeys(
            prev
            for number, flag in enumerate(self._flags)
            if not flag & OUTLIER
            for prev in walk.prevs.of(number)
            if prev >= walk.count or self._flags[prev] & OUTLIER
        )
        outliers = [number for number in gaps if number < walk.count]
        names = dict(zip(outliers, self._names(outliers), strict=True))
        return (names[gap] if gap < walk.count else missing[gap - walk.count] for gap in gaps)

    def timeline_gaps(self) -> Iterator[int]:
        """Yields the indexes of live events that are the first to refer to some backward extremity."""
        walk, flags, seen = self.walk, self._flags, set[int]()
        for number, flag in enumerate(flags):
            if flag & (OUTLIER | BACKFILLED):
                continue
            missing = {prev for prev in walk.prevs.of(number) if prev >= walk.count or flags[prev] & OUTLIER}
            if not missing <= seen:
                seen |= missing
                yield number

    def _names(self, numbers: Sequence[int]) -> Iterator[str]:
        return (name for some in self.walk.chunks(numbers) for name in self._source.names(some))

    @cached_property
    def _new_groups(self) -> array[int]:
        # Those of events, and all that these are deltas to; not what is only the current state at some time (-1).
        walk, builder = self.walk, self.states.builder
        wanted = {*walk.after, *walk.before}
        wanted.discard(-1)
        new = array("i", [-1]) * len(builder)
        for place, number in enumerate(sorted(builder.kept(wanted))):
            new[number] = place
        return new

    def groups(self) -> Iterator[tuple[int, int | None, int, int, int, int]]:
        """Yields (group, prev_group, chain, hops, keys, rows_to_read)."""
        new = self._new_groups
        for number, prev, chain, hops, keys, rows in self.states.builder.group_rows(self._stored()):
            yield new[number], None if prev is None else new[prev], new[chain], hops, keys, rows

    def group_deltas(self) -> Iterator[tuple[int, int, str, str, str | None]]:
        """Yields (chain, group, type, state_key, event_id)."""
        new = self._new_groups
        for chain, group, event_type, state_key, event_id in self.states.builder.delta_rows(self._stored()):
            yield new[chain], new[group], event_type, state_key, event_id

    def _stored(self) -> Sequence[int]:
        return array("i", (number for number, new in enumerate(self._new_groups) if new >= 0))

    def current_state(self) -> Iterator[tuple[str, str, str, str | None]]:
        """Yields (type, state_key, event_id, membership). Yields nothing if the current state is unresolved."""
        if self.current is None:
            return
        states = self.states
        for (event_type, state_key), event_id in states.builder.expand(self.current).items():
            found = states.events.get(event_id)
            yield event_type, state_key, event_id, found.membership if found else None

    def state_deltas(self) -> Iterator[tuple[int, str, str, str | None, str | None]]:
        """Yields (index, type, state_key, event_id, prev_event_id): the changes of the current state."""
        if self.current is None:
            return
        for at in range(0, len(self._changes), 3):
            index, known, current = self._changes[at : at + 3]
            changes = self.states.builder.changes_between(None if known < 0 else known, current)
            for (event_type, state_key), (old, new) in changes.items():
                yield index, event_type, state_key, new, old

    def visibility(self) -> Iterator[VisibilityRow]:
        """Yields ranges in any order. Yields nothing if ``visibility_unresolved``. A cut may begin at ``BEFORE_LIVE``."""
        if self.visibility_unresolved:
            return
        states = self.states
        yield from visibility_rows(self._steps(), states.builder, states.events)
        for redaction in self._withheld:
            yield VisibilityRow(None, "withheld", redaction, redaction)

    def ranges(self, places: Sequence[int]) -> list[VisibilityRow] | None:
        """Returns the sorted ranges, with ``places[number]`` for each number and 0 for ``BEFORE_LIVE``.

        Returns None if ``visibility_unresolved``.
        """
        if self.visibility_unresolved:
            return None
        return in_order(
            replace(
                row,
                first=0 if row.first == BEFORE_LIVE else places[row.first],
                last=None if row.last is None else places[row.last],
            )
            for row in self.visibility()
        )

    def _steps(self) -> Iterator[Step | None]:
        walk = self.walk
        for number, flag in enumerate(self._flags):
            if flag & ACCEPTED:
                continue
            before, after = walk.before[number], walk.after[number]
            if after < 0:
                yield None
                continue
            current = -1 if flag & BACKFILLED else self._current_on_arrival[number]
            yield Step(
                number,
                walk.seen_event(number),
                None if before < 0 else before,
                after,
                after if current < 0 else current,
            )
