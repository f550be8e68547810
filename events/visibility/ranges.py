"""Computes visibility ranges: which users may see which events of a room (pure).

``events.visibility.rule`` is applied to every event with the state after it. The result is stored as rows of
``events.models.EventVisibility``. Example, in a room with history visibility ``joined``:

    1 create    2 Ada joins    3 message    4 Bob joins    5 message    6 Bob leaves    7 message

the rows are: Ada ``joined`` from 2, Bob ``joined`` from 4 to 6, Bob ``cut`` from 6. So Bob sees 4, 5 and 6.

Room-wide ranges follow exactly the history visibility at each event. A user's ranges follow the memberships in the
room's current state when each event arrived. The state at an event on a fork may differ from it. Then the users whose
membership differs are checked one by one, and where a range would give the wrong answer, an exception row is stored for
that event. Time is linear in the events, the changes of the current state, and the differences of events from it.

``VisibilityRanges`` continues stored ranges, so the same code computes the ranges of a whole history and those of the
next event. Places are any ascending numbers: indexes of events, or stream positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.state_assignment import GroupState
from events.rows import RoomRows
from events.visibility.rule import CALL_INVITE, HISTORY_VISIBILITIES, Rule, admitting_rule, for_client, known_visibility
from events.visibility.viewer import HISTORY_VISIBILITY, SeenEvent, Viewer, history_visibility, rule_input
from state.groups.deltas import GroupBuilder

BEFORE_LIVE = -1
"""Stands for the place before the first live event, where the ``cut`` of a user begins who had left by then."""
OF_CURRENT_STATE = frozenset({"cut", "peekable"})
"""The kinds of ranges that follow only from the current state. Backfilled events have no such ranges."""
_ROOM_WIDE = {"world_readable": "world", "shared": "shared"}
_RANGE_TYPES = ("m.room.member", HISTORY_VISIBILITY[0], CALL_INVITE)
_KINDS = {"join": "joined", "invite": "invited"}
_NO_VIEWER = Viewer("")
_ROWS_AT_A_TIME = 1_000


class VisibilityRow(msgspec.Struct, frozen=True, gc=False):
    """A visibility range from ``first`` to ``last``, both included. ``last`` is None while the range is open."""

    user_id: str | None
    kind: str
    first: int
    last: int | None


class PlacedEvent(SeenEvent, Protocol):
    @property
    def backfilled(self) -> bool: ...


class Step(msgspec.Struct, frozen=True, gc=False):
    """One accepted event: its place, the groups before and after it, and that of the current state on arrival."""

    index: int
    event: PlacedEvent
    before: int | None
    after: int
    current: int

    def changes_nothing(self, group: int | None, current: int | None) -> bool:
        """Returns true if every range continues unchanged with the event of this step.

        ``group`` is the state group after the event before it, ``current`` that of the current state right after that
        event arrived.
        """
        return self.after == group == self.current == current and self.event.type not in _RANGE_TYPES


@dataclass(slots=True)
class OpenRanges:
    """The open ranges of one user, or of the room: kind -> (first place, true if the range is stored)."""

    membership: str | None = None
    ranges: dict[str, tuple[int, bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRanges:
    """The stored ranges that are open after the last stored event, which the next events continue."""

    current: int | None = None
    setting: str | None = None
    """The history visibility after the last event, or None if there is no event yet."""
    last: int = BEFORE_LIVE
    wide: OpenRanges = field(default_factory=OpenRanges)
    of_user: Callable[[str], OpenRanges] = lambda _user_id: OpenRanges()
    invited: Callable[[], Collection[str]] = lambda: ()
    """Returns the users who are invited in the room's current state."""


def open_ranges(membership: str | None, setting: str | None, first: int) -> OpenRanges:
    """Returns a user's stored open ranges, as they follow from the membership in the current state.

    ``first`` is used as the place where they begin.
    """
    kinds = {"join": "joined", "invite": "invited" if setting == "invited" else None, "leave": "cut"}
    kind = kinds.get(membership or "")
    return OpenRanges(membership, {kind: (first, True)} if kind is not None else {})


def wide_ranges(setting: str, current_setting: str, first: int) -> OpenRanges:
    """Returns the stored open room-wide ranges, as they follow from the history visibility.

    ``setting`` is that after the last event, ``current_setting`` that of the current state. They begin at ``first``.
    """
    kinds = [_ROOM_WIDE.get(setting), "peekable" if current_setting == "world_readable" else None]
    return OpenRanges(ranges={kind: (first, True) for kind in kinds if kind is not None})


def visibility_rows(
    steps: Iterable[Step | None],
    builder: GroupBuilder,
    events: Mapping[str, ParsedEvent],
    memberships: Callable[[Collection[str]], Mapping[str, str]] | None = None,
) -> Iterator[VisibilityRow]:
    """Returns the ranges of a room, or of some of its backfilled events, computed from accepted events in stream order.

    The rows are not sorted.

    Backfilled events, which come first, have ranges of their own, with the state after each of them as the current
    state. None stands for one without a state. No range continues over it, because it may get ranges later. What the
    ranges say of a backfilled event does not depend on the events around it, so ranges of parts can be joined.
    """
    old, live = VisibilityRanges(builder, events, None, memberships), VisibilityRanges(builder, events)
    for step in steps:
        if step is None:
            yield from old.ended()
            old = VisibilityRanges(builder, events, None, memberships)
            continue
        (old if step.event.backfilled else live).add(step)
        if len(live.rows) >= _ROWS_AT_A_TIME:
            yield from live.rows
            live.rows.clear()
    yield from old.ended()
    yield from live.rows
    yield from live.still_open()


def in_order(rows: Iterable[VisibilityRow]) -> list[VisibilityRow]:
    return sorted(rows, key=lambda row: (row.user_id or "", row.first, row.kind))


def replaced_ranges(room_id: str, ranges: Iterable[VisibilityRow]) -> RoomRows:
    """Returns the changes that replace all ranges of a room by ``ranges``."""
    rows = RoomRows()
    rows.clear(room_id, "events_eventvisibility")
    for row in ranges:
        rows.add("events_eventvisibility", room_id, row.user_id, row.kind, row.first, row.last)
    return rows


class VisibilityRanges:
    """Ranges that are extended with every accepted event.

    ``rows`` are new ranges that have ended. ``closed`` are stored ranges to end, as (user, kind, last place). ``uncut``
    are users whose stored cut no longer applies.
    """

    def __init__(
        self,
        builder: GroupBuilder,
        events: Mapping[str, ParsedEvent],
        stored: StoredRanges | None = None,
        memberships: Callable[[Collection[str]], Mapping[str, str]] | None = None,
    ) -> None:
        """``memberships`` returns by ID what some events set memberships to, faster than ``events`` has them one by one."""
        self._builder = builder
        self._events = events
        self._memberships = memberships
        self._stored = stored or StoredRanges()
        self._current, self._setting = self._stored.current, self._stored.setting
        self._last = self._stored.last
        self._group: int | None = None
        self._users: dict[str | None, OpenRanges] = {None: self._stored.wide}
        self._invited: set[str] = set()
        self.rows: list[VisibilityRow] = []
        self.closed: list[tuple[str | None, str, int]] = []
        self.uncut: list[str] = []

    def add(self, step: Step) -> None:
        if not step.changes_nothing(self._group, self._current):
            self._add(step)
        self._group, self._last = step.after, step.index

    def _add(self, step: Step) -> None:
        after = GroupState(self._builder, step.after, self._events)
        before = GroupState(self._builder, step.before, self._events) if step.before is not None else None
        setting = known_visibility(history_visibility(after))
        # The order matters. ``_change_setting`` comes before ``_follow_current_state``, which opens the ranges of invited
        # users by the new setting. ``_add_exceptions`` compares the rule with the ranges as they are at this event.
        self._change_setting(setting, step)
        self._change_wide(_ROOM_WIDE.get(setting), step)
        self._keep_old_setting(setting, step, before)
        left = self._follow_current_state(step)
        if setting not in _ROOM_WIDE:
            self._add_exceptions(step, before, after, left)
        if (
            step.event.type == CALL_INVITE
            and for_client(rule_input(step.event, _NO_VIEWER, before, after)).rule is Rule.TYPE
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
        """Returns all ranges, also open ones, which end at the last event. For backfilled events: theirs are never open."""
        rows = [*self.rows, *(replace(row, last=self._last) for row in self.still_open())]
        return [row for row in rows if row.kind not in OF_CURRENT_STATE]

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

    def _keep_old_setting(self, setting: str, step: Step, before: GroupState | None) -> None:
        # The old setting still applies to an event that changes it to a less open one, unless its sender is erased.
        if (step.event.type, step.event.state_key) != HISTORY_VISIBILITY or before is None:
            return
        old = known_visibility(history_visibility(before))
        if old in _ROOM_WIDE and HISTORY_VISIBILITIES.index(old) < HISTORY_VISIBILITIES.index(setting):
            self._single(None, f"{_ROOM_WIDE[old]}_before", step)

    def _change_setting(self, setting: str, step: Step) -> None:
        # Users' ranges ``invited`` are open while the setting is ``invited``.
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

    def _follow_current_state(self, step: Step) -> dict[str, str]:
        # Returns, by user, the memberships that the event ends. Such a membership still covers the event itself.
        if step.current == self._current:
            return {}
        changes = self._builder.changes_between(self._current, step.current)
        # At the first live event nobody leaves but by this event. Others who are gone left before it, and do not see it.
        absent_since = BEFORE_LIVE if self._current is None else step.index
        self._current = step.current
        new = [
            event_id for (event_type, _), (_, event_id) in changes.items() if event_type == "m.room.member" and event_id
        ]
        memberships = self._memberships_in_events(new) if self._memberships is None else self._memberships(new)
        left = {}
        for (event_type, user_id), (_, event_id) in changes.items():
            if (event_type, user_id) == HISTORY_VISIBILITY:
                self._change_peeking(event_id, step)
            elif event_type == "m.room.member":
                was = self._user(user_id).membership
                # A backfilled event may be stored without the event before it, so it ends nothing that it is part of.
                is_their_event = (
                    step.event.type == "m.room.member" and step.event.state_key == user_id and not step.event.backfilled
                )
                membership = memberships.get(event_id or "")
                changed = self._change_membership(user_id, membership, step, is_their_event)
                if changed and membership == "leave":
                    self._open(user_id, "cut", step.index if is_their_event else absent_since)
                if changed and is_their_event and was in _KINDS:
                    left[user_id] = str(was)
        return left

    def _memberships_in_events(self, event_ids: Collection[str]) -> dict[str, str]:
        found = ((event_id, self._events.get(event_id)) for event_id in event_ids)
        return {event_id: event.membership or "leave" for event_id, event in found if event is not None}

    def _change_peeking(self, event_id: str | None, step: Step) -> None:
        found = self._events.get(event_id or "")
        if found is not None and found.content.get("history_visibility") == "world_readable":
            self._open(None, "peekable", step.index)
        else:
            self._close(None, "peekable", self._last)

    def _change_membership(self, user_id: str, membership: str | None, step: Step, is_their_event: bool) -> bool:
        # Returns false if nothing changed. The range of a membership that the user's own event ends includes this
        # event.
        user = self._user(user_id)
        if membership == user.membership and not (is_their_event and membership == "leave"):
            return False
        user.membership = membership
        self._close(user_id, "joined", step.index if is_their_event else self._last)
        opened_here = (
            user.ranges.get("invited", (None, False))[0] == step.index and membership == "join"
        )  # by a new setting
        self._close(
            user_id,
            "invited",
            step.index if is_their_event and self._setting == "invited" and not opened_here else self._last,
        )
        self._invited.discard(user_id)
        if membership == "join" or (membership == "invite" and self._setting == "invited"):
            self._open(user_id, _KINDS[membership], step.index)
        if membership == "invite":
            self._invited.add(user_id)
        if user.ranges.pop("cut", (0, False))[1]:
            self.uncut.append(user_id)
        return True

    # --- the event itself ---------------------------------------------------------------------------------------
    def _add_exceptions(
        self, step: Step, before: GroupState | None, after: GroupState, left: Mapping[str, str]
    ) -> None:
        # Of a change of history visibility this is the new setting; ``_keep_old_setting`` has applied the old one.
        for user_id in sorted(self._users_to_check(step)):
            memberships = {left.get(user_id), self._user(user_id).membership}
            is_covered = "join" in memberships or ("invite" in memberships and self._setting == "invited")
            viewer = Viewer(user_id, erased=(step.event.sender,))
            seen = admitting_rule(rule_input(step.event, viewer, before, after)) is not None
            if seen is not is_covered:
                self._single(user_id, "shown" if seen else "hidden", step)

    def _users_to_check(self, step: Step) -> set[str]:
        # Users whose membership the event changes, or is another at the event than in the current state.
        found = set()
        if step.after != step.current:
            changes = self._builder.changes_between(step.current, step.after)
            found = {user_id for event_type, user_id in changes if event_type == "m.room.member"}
        if step.event.type == "m.room.member" and step.event.state_key is not None:
            found.add(step.event.state_key)
        return found
