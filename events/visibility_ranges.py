"""Who may see which events of a room, as ranges (pure).

The rule is ``events.visibility_rules``, judged for every event in the state after it. It is summed up in the kinds of
``events.models.EventVisibility``: room-wide ranges follow the events' own settings exactly; the ranges of a user follow the
memberships of the *line*, the room's current state as the events came in. Where an event lies on a fork and has another
state than the line, the users in question are judged one by one, and where the ranges would tell wrong there is a row for that
single event. Time is linear in events, changes of the line, and differences between events and the line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from events.parsing import ParsedEvent
from events.room_states import GroupState
from events.room_visibility import HISTORY_VISIBILITY, Viewer, history_visibility, sight_of
from events.visibility_rules import admits, effective_visibility, known_visibility
from state.deltas import GroupBuilder

__all__ = ["Step", "VisibilityRow", "visibility_ranges"]

_ROOM_WIDE = {"world_readable": "world", "shared": "shared"}
_IN = ("join", "invite")


@dataclass(frozen=True, slots=True)
class VisibilityRow:
    """One range; ``first`` and ``last`` are indexes of events, both included, ``last`` null while it is open."""

    user_id: str | None
    kind: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One accepted event: its index, the groups before and after it, and the group of the line when it came in."""

    index: int
    event: ParsedEvent
    before: int | None
    after: int
    line: int


def visibility_ranges(
    steps: Sequence[Step], builder: GroupBuilder, events: Mapping[str, ParsedEvent]
) -> list[VisibilityRow]:
    """The ranges of a room from its accepted events, in the order of their stream orderings."""
    return _Ranges(builder, events).of(steps)


@dataclass(slots=True)
class _Run:
    """A run of equal values from index ``first`` to ``last``, null while it goes on."""

    value: str
    first: int
    last: int | None = None


@dataclass(slots=True)
class _User:
    """Where a user is on the line, and what was found so far."""

    membership: str | None = None
    since: int = 0
    cut: int | None = None
    runs: list[_Run] = field(default_factory=list)

    @property
    def open_run(self) -> _Run | None:
        return self.runs[-1] if self.runs and self.runs[-1].last is None else None


class _Ranges:
    """One computation."""

    def __init__(self, builder: GroupBuilder, events: Mapping[str, ParsedEvent]) -> None:
        self._builder = builder
        self._events = events
        self._users: dict[str, _User] = {}
        self._wide: list[_Run] = []
        self._settings: list[_Run] = []
        self._single: list[VisibilityRow] = []
        self._line: int | None = None
        self._last_index = 0

    def of(self, steps: Sequence[Step]) -> list[VisibilityRow]:
        for step in steps:
            closed = self._move_line(step)
            self._judge(step, closed)
            self._last_index = step.index
        found = [VisibilityRow(None, kind, run.first, run.last) for run in self._wide if (kind := _kind(run))]
        open_to_invited = [run for run in self._settings if run.value == "invited"]
        for user_id, user in self._users.items():
            found += [VisibilityRow(user_id, *row) for row in _rows_of(user, open_to_invited)]
        return found + self._single

    # --- the line -----------------------------------------------------------------------------------------------
    def _move_line(self, step: Step) -> dict[str, str]:
        """Follow the line to this event; returns the users whose range ends with it, with its kind."""
        if step.line == self._line:
            return {}
        changes = self._builder.changes_between(self._line, step.line)
        self._line = step.line
        closed = {}
        for (event_type, user_id), (_, event_id) in changes.items():
            if event_type == "m.room.member":
                user = self._users.setdefault(user_id, _User())
                run = user.open_run
                if self._change(user, self._membership(event_id), step, user_id) and run is not None:
                    closed[user_id] = run.value
        return closed

    def _membership(self, event_id: str | None) -> str | None:
        found = self._events.get(event_id or "")
        return None if found is None else found.membership or "leave"

    def _change(self, user: _User, membership: str | None, step: Step, user_id: str) -> bool:
        """A membership of the line changes; true when a range ends with this very event, which it still covers."""
        if membership == user.membership:
            return False
        user.membership = membership
        run, own = user.open_run, step.event.type == "m.room.member" and step.event.state_key == user_id
        if run is not None:
            run.last = step.index if own else self._last_index
            if run.last < run.first:
                user.runs.pop()
        if membership in _IN:
            user.runs.append(_Run(str(membership), step.index))
            user.cut = None
        elif user.cut is None:
            user.cut = step.index
        return own

    # --- the event itself ---------------------------------------------------------------------------------------
    def _judge(self, step: Step, closed: Mapping[str, str]) -> None:
        after = GroupState(self._builder, step.after, self._events)
        before = GroupState(self._builder, step.before, self._events) if step.before is not None else None
        changes = (step.event.type, step.event.state_key) == HISTORY_VISIBILITY
        setting = known_visibility(history_visibility(after))
        old = history_visibility(before) if changes and before is not None else None
        wide = effective_visibility(setting, old, changes=changes)
        _extend(self._settings, setting, step.index, self._last_index)
        _extend(self._wide, wide, step.index, self._last_index)
        if wide == "world_readable":
            return
        open_to_members = wide == "shared"
        for user_id in self._in_question(step, only_own=open_to_members):
            told = self._told(user_id, setting, closed.get(user_id))
            viewer = Viewer(user_id, peeking=open_to_members)
            seen = admits(sight_of(step.event, viewer, before, after)) is not None
            if seen is not told and not (open_to_members and told):
                self._single.append(VisibilityRow(user_id, "shown" if seen else "hidden", step.index, step.index))

    def _in_question(self, step: Step, *, only_own: bool) -> set[str]:
        """Users whose membership it changes, and those whose membership at the event is not that of the line.

        The latter need not be asked (``only_own``) where whoever has a record of membership sees the event anyway.
        """
        found = set()
        if step.after != step.line and not only_own:
            changes = self._builder.changes_between(step.line, step.after)
            found = {user_id for event_type, user_id in changes if event_type == "m.room.member"}
        if step.event.type == "m.room.member" and step.event.state_key is not None:
            found.add(step.event.state_key)
        return found

    def _told(self, user_id: str, setting: str, closed: str | None) -> bool:
        """Whether the user's ranges cover the event at hand."""
        user = self._users.get(user_id)
        values = {closed, user.membership if user is not None else None}
        return "join" in values or ("invite" in values and setting == "invited")


def _kind(run: _Run) -> str | None:
    return _ROOM_WIDE.get(run.value)


def _extend(runs: list[_Run], value: str, index: int, last_index: int) -> None:
    """Let the last run go on, or end it with the event before and begin another."""
    if runs and runs[-1].value == value:
        return
    if runs:
        runs[-1].last = last_index
    runs.append(_Run(value, index))


def _rows_of(user: _User, open_to_invited: Sequence[_Run]) -> Iterator[tuple[str, int, int | None]]:
    """(kind, first, last) of one user."""
    for run in user.runs:
        if run.value == "join":
            yield "joined", run.first, run.last
        else:
            yield from _invited_rows(run, open_to_invited)
    if user.cut is not None:
        yield "cut", user.cut, None


def _invited_rows(run: _Run, open_to_invited: Sequence[_Run]) -> Iterator[tuple[str, int, int | None]]:
    """What an invite shows: events while invited members may read."""
    start = bisect_right(open_to_invited, run.first, key=lambda other: other.first)
    for other in open_to_invited[max(start - 1, 0) :]:
        if run.last is not None and other.first > run.last:
            break
        first = max(run.first, other.first)
        ends = [last for last in (run.last, other.last) if last is not None]
        last = min(ends) if ends else None
        if last is None or first <= last:
            yield "invited", first, last
