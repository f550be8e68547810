"""Computes visibility ranges: which users may see which events of a room (pure).

``events.visibility.rule`` is applied to every event with the state after it. The result is stored as rows of
``events.models.EventVisibility``, which have several kinds. Room-wide ranges follow exactly the history visibility at
each event. A user's ranges follow the memberships in the *line*: the room's current state when each event arrived. The
state at an event on a fork may differ from the line. Then the users whose membership differs are checked one by one.
Where a range would give the wrong answer, an exception row is stored for that event. Time is linear in the events, the
changes of the line, and the differences between events and the line.

``VisibilityRanges`` continues stored ranges, so the same code computes the ranges of a whole history and those of the next
event. Places are any ascending numbers: indexes of events, or stream positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.state_assignment import GroupState
from events.visibility.rule import CALL_INVITE, HISTORY_VISIBILITIES, Rule, admits, for_client, known_visibility
from events.visibility.viewer import HISTORY_VISIBILITY, SeenEvent, Viewer, history_visibility, sight_of
from state.groups.deltas import GroupBuilder

__all__ = [
    "OF_THE_LINE",
    "OpenRanges",
    "Step",
    "StoredRanges",
    "VisibilityRanges",
    "VisibilityRow",
    "in_order",
    "open_ranges",
    "visibility_rows",
    "wide_ranges",
]

OF_THE_LINE = frozenset({"cut", "peekable"})
"""The kinds of ranges that follow only from the current state. Backfilled events have no such ranges."""
_ROOM_WIDE = {"world_readable": "world", "shared": "shared"}
_JUDGED_TYPES = ("m.room.member", HISTORY_VISIBILITY[0], CALL_INVITE)
_IN = {"join": "joined", "invite": "invited"}
_NOBODY = Viewer("")
_ROWS_AT_A_TIME = 1_000


class VisibilityRow(msgspec.Struct, frozen=True, gc=False):
    """A visibility range from ``first`` to ``last``, both included. ``last`` is null while the range is open.

    ``first`` and ``last`` are stream positions, or indexes of events in the order of their positions.
    """

    user_id: str | None
    kind: str
    first: int
    last: int | None


class PlacedEvent(SeenEvent, Protocol):
    """An event with the additional fields on which the ranges depend."""

    @property
    def backfilled(self) -> bool: ...


class Step(msgspec.Struct, frozen=True, gc=False):
    """One accepted event: its place, the state groups before and after the event, and the *line*.

    ``line`` is the group of the room's current state right after the event arrived. ``index`` is the event's place.
    """

    index: int
    event: PlacedEvent
    before: int | None
    after: int
    line: int

    def changes_nothing(self, group: int | None, line: int | None) -> bool:
        """Returns true if every range continues unchanged with the event E of this step.

        ``group`` is the state group after the event before E. ``line`` is the group of the current state right after
        that event arrived. The result is true if the state after E equals ``group``, ``line`` and the current state
        right after E arrived. Also, E must not be of a type on which ranges depend, such as a membership.
        """
        return self.after == group == self.line == line and self.event.type not in _JUDGED_TYPES


@dataclass(slots=True)
class OpenRanges:
    """The open ranges of one user, or the open room-wide ranges.

    ``ranges`` maps a kind of range to (first place of the range, true if the range is stored).
    """

    membership: str | None = None
    ranges: dict[str, tuple[int, bool]] = field(default_factory=dict)


def _nothing(_user_id: str) -> OpenRanges:
    return OpenRanges()


def _no_users() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class StoredRanges:
    """The stored ranges that are open after the last stored event, which the next events continue."""

    line: int | None = None
    setting: str | None = None
    """The history visibility after the last event, or null if there is no event yet."""
    last: int = 0
    wide: OpenRanges = field(default_factory=OpenRanges)
    of_user: Callable[[str], OpenRanges] = _nothing
    invited: Callable[[], Collection[str]] = _no_users
    """Returns the users who are invited in the room's current state."""


def open_ranges(membership: str | None, setting: str | None, first: int) -> OpenRanges:
    """Returns the stored ranges of a user that are open, as they follow from the user's membership.

    ``membership`` is the user's membership in the room's current state, and ``setting`` the history visibility.
    ``first`` is used as the place where the returned ranges begin.
    """
    kinds = {"join": "joined", "invite": "invited" if setting == "invited" else None, "leave": "cut"}
    kind = kinds.get(membership or "")
    return OpenRanges(membership, {kind: (first, True)} if kind is not None else {})


def wide_ranges(setting: str, line_setting: str, first: int) -> OpenRanges:
    """Returns the stored room-wide ranges that are open, as they follow from the history visibility.

    ``setting`` is the history visibility after the last event, and ``line_setting`` the history visibility in the
    room's current state. ``first`` is used as the place where the returned ranges begin.
    """
    kinds = [_ROOM_WIDE.get(setting), "peekable" if line_setting == "world_readable" else None]
    return OpenRanges(ranges={kind: (first, True) for kind in kinds if kind is not None})


def visibility_rows(
    steps: Iterable[Step], builder: GroupBuilder, events: Mapping[str, ParsedEvent]
) -> Iterator[VisibilityRow]:
    """Returns the ranges of a room, computed from its accepted events in stream order. The rows are not sorted.

    Backfilled events, which come first, have ranges of their own. The state after each of them is used as the room's
    current state.
    """
    old, live = VisibilityRanges(builder, events), VisibilityRanges(builder, events)
    for step in steps:
        (old if step.event.backfilled else live).add(step)
        if len(live.rows) >= _ROWS_AT_A_TIME:
            yield from live.rows
            live.rows.clear()
    yield from old.ended()
    yield from live.rows
    yield from live.still_open()


def in_order(rows: Iterable[VisibilityRow]) -> list[VisibilityRow]:
    """Returns the rows sorted, so that two lists of rows can be compared."""
    return sorted(rows, key=lambda row: (row.user_id or "", row.first, row.kind))


class VisibilityRanges:
    """Ranges that are extended with every accepted event.

    ``rows`` are new ranges that have ended. ``closed`` are stored ranges to end, as (user, kind, last place). ``uncut``
    are users whose stored cut no longer applies.
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
        """Adds the next event in the order of places."""
        if not step.changes_nothing(self._group, self._line):
            self._add(step)
        self._group, self._last = step.after, step.index

    def _add(self, step: Step) -> None:
        after = GroupState(self._builder, step.after, self._events)
        before = GroupState(self._builder, step.before, self._events) if step.before is not None else None
        setting = known_visibility(history_visibility(after))
        # The order matters. ``_change_setting`` comes before ``_move_line``, which opens the ranges of invited users by the new
        # setting. ``_judge`` comes last, because it compares the rule with the ranges as they are at this event.
        self._change_setting(setting, step)
        self._change_wide(_ROOM_WIDE.get(setting), step)
        self._end_part(setting, step, before)
        left = self._move_line(step)
        if setting not in _ROOM_WIDE:
            self._judge(step, before, after, left)
        if (
            step.event.type == CALL_INVITE
            and for_client(sight_of(step.event, _NOBODY, before, after)).rule is Rule.TYPE
        ):
            self._single(None, "withheld", step)

    def still_open(self) -> list[VisibilityRow]:
        """Returns the open ranges that are not stored yet."""
        return [
            VisibilityRow(user_id, kind, first, None)
            for user_id, user in self._users.items()
            for kind, (first, stored) in user.ranges.items()
            if not stored
        ]

    def ended(self) -> list[VisibilityRow]:
        """Returns all ranges, and ends open ranges at the last event. Used for backfilled events: their ranges are never open."""
        rows = [*self.rows, *(replace(row, last=self._last) for row in self.still_open())]
        return [row for row in rows if row.kind not in OF_THE_LINE]

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

    def _single(self, user_id: str | None, kind: str, step: Step) -> None:
        self.rows.append(VisibilityRow(user_id, kind, step.index, step.index))

    def _change_wide(self, kind: str | None, step: Step) -> None:
        for open_kind in _ROOM_WIDE.values():
            if open_kind != kind:
                self._close(None, open_kind, self._last)
        if kind is not None:
            self._open(None, kind, step.index)

    def _end_part(self, setting: str, step: Step, before: GroupState | None) -> None:
        """Adds a row if the event changes the history visibility to a less open setting.

        The old setting still applies to that event, unless the event's sender is erased.
        """
        if (step.event.type, step.event.state_key) != HISTORY_VISIBILITY or before is None:
            return
        old = known_visibility(history_visibility(before))
        if old in _ROOM_WIDE and HISTORY_VISIBILITIES.index(old) < HISTORY_VISIBILITIES.index(setting):
            self._single(None, f"{_ROOM_WIDE[old]}_before", step)

    def _change_setting(self, setting: str, step: Step) -> None:
        """Opens or closes the ranges of invited users.

        These ranges open when the history visibility becomes ``invited``, and close when it is no longer ``invited``.
        """
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
        """Changes the users' ranges to fit the room's current state (the *line*) after this event.

        Returns, by user, the memberships that the event ends. Such a membership still covers the event itself.
        """
        if step.line == self._line:
            return {}
        changes = self._builder.changes_between(self._line, step.line)
        self._line = step.line
        left = {}
        for (event_type, user_id), (_, event_id) in changes.items():
            if (event_type, user_id) == HISTORY_VISIBILITY:
                self._change_peeking(event_id, step)
            elif event_type == "m.room.member":
                was = self._user(user_id).membership
                own = step.event.type == "m.room.member" and step.event.state_key == user_id
                if self._change_membership(user_id, self._membership(event_id), step, own) and own and was in _IN:
                    left[user_id] = str(was)
        return left

    def _change_peeking(self, event_id: str | None, step: Step) -> None:
        """Opens the range ``peekable`` if the room's current state is now world-readable, else closes it.

        ``event_id`` is the event with the history visibility in the current state, or null.
        """
        found = self._events.get(event_id or "")
        if found is not None and found.content.get("history_visibility") == "world_readable":
            self._open(None, "peekable", step.index)
        else:
            self._close(None, "peekable", self._last)

    def _membership(self, event_id: str | None) -> str | None:
        found = self._events.get(event_id or "")
        return None if found is None else found.membership or "leave"

    def _change_membership(self, user_id: str, membership: str | None, step: Step, own: bool) -> bool:
        """Changes the ranges of a user whose membership changes in the current state. Returns false if nothing changed.

        ``own`` is true if the event is the user's own membership event. If such an event ends a membership, the range
        of that membership includes the event.
        """
        user = self._user(user_id)
        if membership == user.membership and not (own and membership == "leave"):
            return False
        user.membership = membership
        self._close(user_id, "joined", step.index if own else self._last)
        begun = user.ranges.get("invited", (None, False))[0] == step.index and membership == "join"  # by a new setting
        self._close(user_id, "invited", step.index if own and self._setting == "invited" and not begun else self._last)
        self._invited.discard(user_id)
        if membership == "join" or (membership == "invite" and self._setting == "invited"):
            self._open(user_id, _IN[membership], step.index)
        if membership == "invite":
            self._invited.add(user_id)
        if user.ranges.pop("cut", (0, False))[1]:
            self.uncut.append(user_id)
        if membership == "leave":
            self._open(user_id, "cut", step.index)
        return True

    # --- the event itself ---------------------------------------------------------------------------------------
    def _judge(self, step: Step, before: GroupState | None, after: GroupState, left: Mapping[str, str]) -> None:
        """Adds a row for each user for whom the ranges give the wrong answer about this event.

        Called only if the history visibility is neither ``shared`` nor ``world_readable``. For a change of history
        visibility, this method applies the new setting, and ``_end_part`` the old setting.
        """
        for user_id in sorted(self._in_question(step)):
            told = self._is_covered(user_id, left.get(user_id))
            viewer = Viewer(user_id, erased=(step.event.sender,))
            seen = admits(sight_of(step.event, viewer, before, after)) is not None
            if seen is not told:
                self._single(user_id, "shown" if seen else "hidden", step)

    def _in_question(self, step: Step) -> set[str]:
        """Returns the users whose ranges may give the wrong answer for this event.

        These are the users whose membership the event changes, and the users whose membership at the event differs from
        their membership in the current state (the *line*).
        """
        found = set()
        if step.after != step.line:
            changes = self._builder.changes_between(step.line, step.after)
            found = {user_id for event_type, user_id in changes if event_type == "m.room.member"}
        if step.event.type == "m.room.member" and step.event.state_key is not None:
            found.add(step.event.state_key)
        return found

    def _is_covered(self, user_id: str, left: str | None) -> bool:
        """Returns true if the user's ranges cover the current event.

        ``left`` is a membership of the user that the event ends, or null.
        """
        memberships = {left, self._user(user_id).membership}
        return "join" in memberships or ("invite" in memberships and self._setting == "invited")
