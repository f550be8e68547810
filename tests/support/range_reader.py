"""Who sees what by the ranges, read plainly, beside the rule judged event by event: what the SQL predicate is in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from events.format.parsing import ParsedEvent
from events.room.graph import is_accepted
from events.room.state_assignment import RoomStates
from events.visibility.ranges import VisibilityRow
from events.visibility.rule import RuleInput, admitting_rule, for_client, more_joined
from events.visibility.viewer import Viewer, membership, rule_input
from state.rules.room_versions import room_version


class Seen:
    """A room's events with the states around them."""

    def __init__(self, events: Sequence[ParsedEvent]) -> None:
        self.events = events
        states = RoomStates(room_version(events[0].room_version), events)
        states.assign(events)
        self.around = [
            (
                states.state(states.before[event.event_id]) if event.event_id in states.before else {},
                states.state(states.after[event.event_id]) if event.event_id in states.after else None,
            )
            for event in events
        ]

    def sight(self, number: int, viewer: Viewer) -> RuleInput:
        return rule_input(self.events[number], viewer, *self.around[number])

    def by_rule(self, viewer: Viewer) -> set[int]:
        """The accepted events that the state lets the viewer see, whatever their type is."""
        numbers = (number for number, event in enumerate(self.events) if is_accepted(event))
        return {number for number in numbers if admitting_rule(self.sight(number, viewer)) is not None}

    def by_ranges(self, rows: Iterable[VisibilityRow], viewer: Viewer) -> set[int]:
        """The accepted events that ranges show to the viewer, whatever their type is."""
        numbers = {number for number, event in enumerate(self.events) if is_accepted(event)}
        covered: dict[tuple[bool, str], set[int]] = {}
        for row in rows:
            if row.user_id in (None, viewer.user_id):
                span = range(row.first, len(self.events) if row.last is None else row.last + 1)
                covered.setdefault((row.user_id is None, row.kind), set()).update(span)
        of_room = {kind: found for (wide, kind), found in covered.items() if wide}
        own = {kind: found for (wide, kind), found in covered.items() if not wide}
        return numbers & self._shown(of_room, own, viewer)

    def _shown(self, wide: dict[str, set[int]], own: dict[str, set[int]], viewer: Viewer) -> set[int]:
        shared = wide.get("shared", set())
        member = set().union(*(own.get(kind, ()) for kind in ("joined", "invited", "shown"))) - own.get("hidden", set())
        before = wide.get("world_before", set()) | (set() if viewer.peeking else wide.get("shared_before", set()))
        shown = wide.get("world", set()) | {n for n in before if self.events[n].sender not in viewer.erased}
        if not viewer.peeking:
            return shown | shared | member
        return shown | (member - shared) | {n for n in shared & self._in_graph() if self._joined_at(n, viewer)}

    def _in_graph(self) -> set[int]:
        return {n for n, event in enumerate(self.events) if is_accepted(event)}

    def _joined_at(self, number: int, viewer: Viewer) -> bool:
        event, (before, after) = self.events[number], self.around[number]
        now = membership(after, viewer.user_id)
        if event.type == "m.room.member" and event.state_key == viewer.user_id:
            then = membership(before, viewer.user_id)
            return more_joined(now, then) == "join" or (now == "leave" and then == "invite")
        return now == "join"

    def withheld(self, rows: Iterable[VisibilityRow]) -> set[int]:
        return {row.first for row in rows if row.kind == "withheld"}

    def calls_withheld(self) -> set[int]:
        """Calls that the rule keeps from everybody, because the room is public."""
        calls = (n for n in self._in_graph() if self.events[n].type == "m.call.invite")
        return {n for n in calls if for_client(self.sight(n, Viewer(""))).rule == "type"}
