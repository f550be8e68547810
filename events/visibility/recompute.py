"""Computes the ranges of a room whose events, verdicts and states are known, and compares two sets of ranges (pure).

Events are processed in the order of their stream positions, and the current state after each event is computed again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.format.redaction import REDACTION, may_redact
from events.room.extremities import EventExtremityTracker, ForwardExtremities
from events.room.graph import Node, causal_order, is_accepted
from events.room.state_assignment import RoomStates
from events.visibility.ranges import Step, VisibilityRow, in_order, visibility_rows


def show_the_same(left: Sequence[VisibilityRow], right: Sequence[VisibilityRow], places: Sequence[int]) -> bool:
    """Returns true if the two sets of ranges show the same accepted events, at ``places``, to all users.

    Different rows may mean the same: each batch of backfilled events may have ranges of its own, and in a room with
    very many forward extremities the current state is computed only once for each batch.
    """
    return _covered(left, places) == _covered(right, places)


_CONTINUING_KINDS = ("joined", "invited")
_MERGED_KINDS = dict.fromkeys(("joined", "invited", "shown", "hidden"), "own")


def _covered(
    rows: Sequence[VisibilityRow], places: Sequence[int]
) -> dict[tuple[str | None, str], list[tuple[int, int]]]:
    # (user, kind) -> merged spans of indexes in ``places``. Users' own rows are merged, others by kind.
    spans: dict[tuple[str | None, str], list[tuple[int, int]]] = {}
    hidden: dict[str | None, set[int]] = {}
    for row in rows:
        first = bisect_left(places, row.first)
        last = len(places) - 1 if row.last is None else bisect_right(places, row.last) - 1
        if row.kind == "hidden":
            hidden.setdefault(row.user_id, set()).add(first)
        elif first <= last:
            spans.setdefault((row.user_id, _MERGED_KINDS.get(row.kind, row.kind)), []).append((first, last))
    open_to_all = _merged([span for kind in ("shared", "world") for span in spans.get((None, kind), ())], ())
    covered = {}
    for (user_id, kind), found in spans.items():
        covered[user_id, kind] = _merged(found, hidden.get(user_id, ()) if kind == "own" else ())
        if kind == "own":  # where a room-wide range admits members, the predicate does not read a user's own rows
            covered[user_id, kind] = list(_outside(covered[user_id, kind], open_to_all))
    if open_to_all and open_to_all[-1][1] == len(places) - 1:  # open ranges matter for events to come
        covered.update(
            ((row.user_id, "open"), [(0, 0)]) for row in rows if row.last is None and row.kind in _CONTINUING_KINDS
        )
    return {key: found for key, found in covered.items() if found}


def _merged(spans: list[tuple[int, int]], hidden: Collection[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found if not hidden else list(_outside(found, [(number, number) for number in sorted(hidden)]))


def _outside(spans: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    number = 0
    for first, last in spans:
        start = first
        while number < len(others) and others[number][1] < start:
            number += 1
        index = number
        while index < len(others) and others[index][0] <= last:
            if start < others[index][0]:
                yield start, others[index][0] - 1
            start = others[index][1] + 1
            index += 1
        if start <= last:
            yield start, last


def _arrived_before(prev: ParsedEvent, event: ParsedEvent) -> bool:
    # of backfilled events the order is not known
    return 0 < (prev.stream_ordering or 0) < (event.stream_ordering or 0)


class GraphRanges:
    """The events of a room that are in the graph, in the order of arrival, with verdicts and states.

    ``targets`` maps the IDs of redacted events to (type, sender). ``extremities`` and ``current``, the group of the
    current state (None: not known), are those after all events.
    """

    def __init__(
        self, graph: Sequence[ParsedEvent], states: RoomStates, targets: Mapping[str, tuple[str, str]]
    ) -> None:
        self._graph, self._states, self._targets = graph, states, targets
        self._version = states.version
        self.extremities: list[str] = []
        self.current: int | None = None
        self._current_on_arrival = self._current_states()

    def ranges(self) -> list[VisibilityRow] | None:
        """Returns the visibility ranges, or None if the state at a live event is not known."""
        accepted = [event for event in self._graph if is_accepted(event)]
        steps = [self._step(event, self._current_on_arrival.get(event.event_id)) for event in accepted]
        if any(step is None and not event.backfilled for event, step in zip(accepted, steps, strict=True)):
            return None
        return in_order([*visibility_rows(steps, self._states.builder, dict(self._states.events)), *self._withheld()])

    def _current_states(self) -> dict[str, int | None]:
        """For each live event the group of the current state right after its arrival.

        Events are processed in the order of positions, even if an event arrived before its prev event. Example: A is
        Bob's leave, and arrives before its prev event, a message M. Then M arrives, and then B, whose prev event is A.
        If A were processed after M, the current state would go back to Bob's membership at M, and Bob's cut would begin
        only at B.
        """
        by_id = {event.event_id: event for event in self._graph}
        last = next((event for event in reversed(self._graph) if is_accepted(event) and not event.backfilled), None)

        def find(event_ids: Collection[str]) -> list[ParsedEvent]:
            return [by_id[event_id] for event_id in event_ids if event_id in by_id]

        def reaches(node: Node[str]) -> Sequence[str]:
            event = by_id[node.event_id]
            earlier = {prev for prev in event.prev_event_ids if prev in by_id and _arrived_before(by_id[prev], event)}
            return self._states.reached(event, self._states.before.get(event.event_id), earlier)

        tracker = EventExtremityTracker(
            self._states, ForwardExtremities(find=find, live=last is not None, reaches=reaches)
        )
        found: dict[str, int | None] = {}
        # Live events only. Once a room has an accepted live event, a backfilled event is never a forward extremity, and the time
        # of its arrival is not known.
        for event in self._graph:
            if not event.backfilled:
                tracker.add(event)
                found[event.event_id] = tracker.current
        if last is None:
            backfilled = [event for event in self._graph if event.backfilled]
            order, left = causal_order(backfilled)
            for number in (*order, *left):
                tracker.add(backfilled[number])
        current = self.current = tracker.finish()
        self.extremities = list(tracker.extremities.current)
        if last is not None and current is not None:  # the next batch in this room continues from this state
            found[last.event_id] = current
        return found

    def _step(self, event: ParsedEvent, current: int | None) -> Step | None:
        after = self._states.after.get(event.event_id)
        if after is None or event.stream_ordering is None:
            return None
        before = self._states.before.get(event.event_id)
        return Step(event.stream_ordering, event, before, after, after if current is None else current)

    def _withheld(self) -> list[VisibilityRow]:
        # also redactions without a target
        found = []
        for event in self._graph:
            place = event.stream_ordering
            if place is None or event.type != REDACTION or not is_accepted(event):
                continue
            if not self.redacts_something(event):
                found.append(VisibilityRow(None, "withheld", place, place))
        return found

    def redacts_something(self, redaction: ParsedEvent) -> bool:
        """Returns true if an accepted redaction takes effect, by the state before it as far as that is known."""
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
