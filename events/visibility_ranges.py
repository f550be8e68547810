"""Who may see which events of a room, as ranges (pure).

The rule is ``events.visibility_rules``, judged for every event in the state after it. It is summed up in the kinds of
``events.models.EventVisibility``: room-wide ranges follow the events' own settings exactly; the ranges of a user follow the
memberships of the *line*, the room's current state as the events came in. Where an event lies on a fork and has another
state than the line, the users in question are judged one by one, and where the ranges would tell wrong there is a row for that
single event. Time is linear in events, changes of the line, and differences between events and the line.

``VisibilityRanges`` goes on where stored ranges end, so the same code serves a whole history and the next event. Places are
any ascending numbers: indexes of events, or stream positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from events.parsing import ParsedEvent
from events.room_states import GroupState
from events.room_visibility import HISTORY_VISIBILITY, Viewer, history_visibility, sight_of
from events.visibility_rules import admits, effective_visibility, known_visibility
from state.deltas import GroupBuilder

__all__ = ["OpenRanges", "Step", "StoredRanges", "VisibilityRanges", "VisibilityRow", "visibility_ranges"]

_ROOM_WIDE = {"world_readable": "world", "shared": "shared"}
_JUDGED_TYPES = ("m.room.member", HISTORY_VISIBILITY[0])
_IN = {"join": "joined", "invite": "invited"}


@dataclass(frozen=True, slots=True)
class VisibilityRow:
    """One range; ``first`` and ``last`` are places of events, both included, ``last`` null while it is open."""

    user_id: str | None
    kind: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One accepted event: its place, the groups before and after it, and the group of the line when it came in."""

    index: int
    event: ParsedEvent
    before: int | None
    after: int
    line: int


@dataclass(slots=True)
class OpenRanges:
    """What of a user, or room-wide, is open: kind -> (first place, whether it is stored)."""

    membership: str | None = None
    ranges: dict[str, tuple[int, bool]] = field(default_factory=dict)


def _nothing(_user_id: str) -> OpenRanges:
    return OpenRanges()


def _nobody() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class StoredRanges:
    """Where stored ranges end: what to go on from."""

    line: int | None = None
    setting: str | None = None
    last: int = 0
    wide: OpenRanges = field(default_factory=OpenRanges)
    of_user: Callable[[str], OpenRanges] = _nothing
    invited: Callable[[], Collection[str]] = _nobody
    """Users who are invited on the line."""


def visibility_ranges(
    steps: Sequence[Step], builder: GroupBuilder, events: Mapping[str, ParsedEvent]
) -> list[VisibilityRow]:
    """The ranges of a room from its accepted events, in the order of their stream orderings."""
    ranges = VisibilityRanges(builder, events)
    for step in steps:
        ranges.add(step)
    return sorted([*ranges.rows, *ranges.still_open()], key=lambda row: (row.user_id or "", row.first, row.kind))


class VisibilityRanges:
    """Ranges that grow with every accepted event.

    ``rows`` are finished new ranges, ``closed`` stored ranges that end as (user, kind, last place), ``uncut`` users whose
    stored cut is void.
    """

    def __init__(
        self, builder: GroupBuilder, events: Mapping[str, ParsedEvent], stored: StoredRanges | None = None
    ) -> None:
        self._builder = builder
        self._events = events
        self._stored = stored or StoredRanges()
        self._line, self._setting = self._stored.line, self._stored.setting
        self._last = self._stored.last
        self._group: int | None = None
        self._users: dict[str | None, OpenRanges] = {None: self._stored.wide}
        self._invited: set[str] = set()
        self.rows: list[VisibilityRow] = []
        self.closed: list[tuple[str | None, str, int]] = []
        self.uncut: list[str] = []

    def add(self, step: Step) -> None:
        """The next event in the order of places."""
        if not self._changes_nothing(step):
            self._add(step)
        self._group, self._last = step.after, step.index

    def _changes_nothing(self, step: Step) -> bool:
        """True for an event on the line that has the state of the one before: every range goes on."""
        if not (step.after == self._group == step.line == self._line) or step.event.type in _JUDGED_TYPES:
            return False
        kind = _ROOM_WIDE.get(self._setting or "")
        return self._users[None].ranges.keys() == ({kind} if kind is not None else set())

    def _add(self, step: Step) -> None:
        after = GroupState(self._builder, step.after, self._events)
        before = GroupState(self._builder, step.before, self._events) if step.before is not None else None
        changes = (step.event.type, step.event.state_key) == HISTORY_VISIBILITY
        setting = known_visibility(history_visibility(after))
        old = history_visibility(before) if changes and before is not None else None
        wide = effective_visibility(setting, old, changes=changes)
        self._change_setting(setting, step)
        self._change_wide(_ROOM_WIDE.get(wide), step)
        left = self._move_line(step)
        if wide != "world_readable":
            self._judge(step, before, after, left, open_to_members=wide == "shared")

    def still_open(self) -> list[VisibilityRow]:
        """New ranges that go on."""
        return [
            VisibilityRow(user_id, kind, first, None)
            for user_id, user in self._users.items()
            for kind, (first, stored) in user.ranges.items()
            if not stored
        ]

    # --- opening and closing ------------------------------------------------------------------------------------
    def _user(self, user_id: str) -> OpenRanges:
        if user_id not in self._users:
            self._users[user_id] = self._stored.of_user(user_id)
        return self._users[user_id]

    def _open(self, user_id: str | None, kind: str, first: int) -> None:
        self._users[user_id].ranges.setdefault(kind, (first, False))

    def _close(self, user_id: str | None, kind: str, last: int) -> None:
        first, stored = self._users[user_id].ranges.pop(kind, (last + 1, False))
        if stored:
            self.closed.append((user_id, kind, last))
        elif first <= last:
            self.rows.append(VisibilityRow(user_id, kind, first, last))

    def _change_wide(self, kind: str | None, step: Step) -> None:
        for open_kind in list(self._users[None].ranges):
            if open_kind != kind:
                self._close(None, open_kind, self._last)
        if kind is not None:
            self._open(None, kind, step.index)

    def _change_setting(self, setting: str, step: Step) -> None:
        """What the invited see begins and ends with the setting of that name."""
        if setting == self._setting:
            return
        if "invited" in (setting, self._setting):
            for user_id in sorted({*self._invited, *self._stored.invited()}):
                if self._user(user_id).membership == "invite":
                    if setting == "invited":
                        self._open(user_id, "invited", step.index)
                    else:
                        self._close(user_id, "invited", self._last)
        self._setting = setting

    def _move_line(self, step: Step) -> dict[str, str]:
        """Follow the line to this event; returns the memberships that end with it, where it still counts for them."""
        if step.line == self._line:
            return {}
        changes = self._builder.changes_between(self._line, step.line)
        self._line = step.line
        left = {}
        for (event_type, user_id), (_, event_id) in changes.items():
            if event_type == "m.room.member":
                was = self._user(user_id).membership
                own = step.event.type == "m.room.member" and step.event.state_key == user_id
                if self._change_membership(user_id, self._membership(event_id), step, own) and own and was in _IN:
                    left[user_id] = str(was)
        return left

    def _membership(self, event_id: str | None) -> str | None:
        found = self._events.get(event_id or "")
        return None if found is None else found.membership or "leave"

    def _change_membership(self, user_id: str, membership: str | None, step: Step, own: bool) -> bool:
        """A membership of the line changes; the own event that ends one still belongs to it."""
        user = self._user(user_id)
        if membership == user.membership:
            return False
        user.membership = membership
        self._close(user_id, "joined", step.index if own else self._last)
        self._close(user_id, "invited", step.index if own and self._setting == "invited" else self._last)
        self._invited.discard(user_id)
        if membership == "join" or (membership == "invite" and self._setting == "invited"):
            self._open(user_id, _IN[membership], step.index)
        if membership == "invite":
            self._invited.add(user_id)
        if membership not in _IN:
            self._open(user_id, "cut", step.index)
        elif user.ranges.pop("cut", (0, False))[1]:
            self.uncut.append(user_id)
        return True

    # --- the event itself ---------------------------------------------------------------------------------------
    def _judge(
        self,
        step: Step,
        before: GroupState | None,
        after: GroupState,
        left: Mapping[str, str],
        *,
        open_to_members: bool,
    ) -> None:
        """Write down the users for whom the ranges tell wrong; who has a record sees an open event anyway."""
        for user_id in sorted(self._in_question(step, only_own=open_to_members)):
            told = self._told(user_id, left.get(user_id))
            viewer = Viewer(user_id, peeking=open_to_members)
            seen = admits(sight_of(step.event, viewer, before, after)) is not None
            if seen is not told and not (open_to_members and told):
                self.rows.append(VisibilityRow(user_id, "shown" if seen else "hidden", step.index, step.index))

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

    def _told(self, user_id: str, left: str | None) -> bool:
        """Whether the user's ranges cover the event at hand."""
        memberships = {left, self._user(user_id).membership}
        return "join" in memberships or ("invite" in memberships and self._setting == "invited")
