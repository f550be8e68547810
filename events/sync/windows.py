"""Reads timelines and states of many rooms, each within its own window of positions. A few queries serve all rooms.

Assumes that the caller opened the snapshot (``streams.db.consistent_read``), and took ``now`` before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from events.reading.event_json import ServedEvent, served
from events.sync import sql
from events.sync.sql import rows
from events.visibility.access import Access, access_parameters, read_access
from state.store import entries
from streams.core.tokens import VectorToken

LOWEST, LARGEST = -(2**63) + 1, 2**63 - 1
StateKey = tuple[str, str]
_NEVER_SHOWN = "m.room.aliases"


@dataclass(frozen=True, slots=True)
class Span:
    """The two tokens between which an answer lies. Without ``since`` the answer starts at the beginning."""

    now: VectorToken
    since: VectorToken | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a room that is read: ``low < position <= high``, within the span.

    ``whole``: the room is read from its beginning, even if ``since`` covers it. ``memberships_only``: only the user's own
    memberships are read. ``state_high`` is the position of the state in the answer, if it differs from ``high``.
    ``stateless``: the answer contains no state.
    """

    room_id: str
    low: int
    high: int
    whole: bool = False
    memberships_only: bool = False
    state_high: int | None = None
    stateless: bool = False


@dataclass(slots=True)
class Timeline:
    """The events of one window that a sync answer shows, in the order in which the client gets them.

    ``more``: the window has older events, which are beyond the limit or were not examined.
    """

    events: list[ServedEvent] = field(default_factory=list)
    more: bool = False


@dataclass(slots=True)
class StateChanges:
    """The state at the end of a window: entries that the client does not know, and keys that were removed."""

    entries: dict[StateKey, str] = field(default_factory=dict)
    removed: list[StateKey] = field(default_factory=list)
    known: dict[StateKey, str | None] = field(default_factory=dict)
    """For keys that changed, the event ID that the client knows there, or None."""


def examined_events(limit: int) -> int:
    return 5 * max(2 * limit, 10)


class Windows:
    """The windows of one user, each of a different room, with the queries that read them."""

    def __init__(self, user_id: str, windows: Sequence[Window], span: Span, using: str) -> None:
        self._user_id = user_id
        self.span, self.using = span, using
        self.windows = {window.room_id: window for window in windows}
        self._lows = {window.room_id: window.low for window in windows}
        self._access: dict[str, Access] = {}

    # --- timelines ------------------------------------------------------------------------------------------------
    def drop_quiet(self) -> None:
        """Removes the windows without any event and without any change of state. Whole windows stay."""
        partial = [window for window in self.windows.values() if not window.whole]
        lively = {room_id for (room_id,) in self._rows(sql.LIVELY, partial)} if partial else set()
        self.windows = {room_id: w for room_id, w in self.windows.items() if w.whole or room_id in lively}

    def after_gaps(self) -> set[str]:
        """Moves the start of each timeline up to the newest gap in its window.

        Returns the rooms that have a gap.

        The event at the gap stays in the timeline, and the range of ``changes`` stays the same. A state event that came
        late is treated as a gap, too. Example: writer A commits 6, and writer B commits 7 at the same key. The last
        answer had 7 and not 6. A client that applied a timeline with 6 would go back to the older entry.
        """
        partial = [window for window in self.windows.values() if not window.whole and not window.memberships_only]
        found = {room_id: position - 1 for room_id, position in self._rows(sql.GAPS, partial)} if partial else {}
        if partial and self.span.since is not None and self.span.since.entries:
            for room_id, position in self._rows(sql.OVERTAKEN, partial):
                found[room_id] = max(position, found.get(room_id, position))
        for room_id, low in found.items():
            self.windows[room_id] = replace(self.windows[room_id], low=low)
        return set(found)

    def timelines(self, limit: int, *, topological: bool = False) -> dict[str, Timeline]:
        """Returns the last ``limit`` visible events of each window, ascending, in stream order or that of pages."""
        found = {room_id: Timeline() for room_id in self.windows}
        more = {"limit": limit + 1, "scanned": examined_events(limit)}  # one event too many shows that there are more
        text = sql.LATEST if topological else sql.NEWEST
        allowed = self._allowed()
        values = {**more, **access_parameters(self._user_id, self._access.values())}
        for *row, pruned, _ in self._rows(text, allowed, values):
            event = served(row, pruned=pruned)
            found[event.room_id].events.append(event)
        few = []
        for room_id, timeline in found.items():
            if len(timeline.events) > limit:
                timeline.more = True
                del timeline.events[0]  # the oldest
            else:  # at the end of the window, or ``scanned`` events were examined and few of them are shown
                few.append(self.windows[room_id])
        text = sql.MORE_LATEST if topological else sql.MORE_NEWEST
        for (room_id,) in self._rows(text, few, more) if few else []:
            found[room_id].more = True
        return found

    # --- states ---------------------------------------------------------------------------------------------------
    def changes(self) -> dict[str, StateChanges]:
        """Returns by room how the state changed within its window, or for a whole window the full state."""
        found = {room_id: StateChanges() for room_id in self.windows}
        with_state = [
            replace(w, low=self._lows[w.room_id], high=w.high if w.state_high is None else w.state_high)
            for w in self.windows.values()
            if not w.stateless
        ]
        parts = [window for window in with_state if not window.whole]
        for room_id, kind, key, before, after in self._rows(sql.CHANGES, parts) if parts else []:
            room = found[room_id]
            room.known[kind, key] = before
            if after is not None and after != before:
                room.entries[kind, key] = after
            elif after is None and before is not None:
                room.removed.append((kind, key))
        self._whole_states(found, [window for window in with_state if window.whole])
        for room in found.values():
            room.entries = {key: event_id for key, event_id in room.entries.items() if key[0] != _NEVER_SHOWN}
        return found

    def _whole_states(self, found: Mapping[str, StateChanges], windows: Sequence[Window]) -> None:
        if not windows:
            return
        partial = {"rooms": [window.room_id for window in windows]}
        for room_id, kind, key, event_id in rows(sql.CURRENT, partial, self.using):
            found[room_id].entries[kind, key] = event_id
        # The table may be newer than the window: undo the later changes.
        for room_id, kind, key, event_id in self._rows(sql.LATER_CHANGES, windows):
            if event_id is None:
                found[room_id].entries.pop((kind, key), None)
            else:
                found[room_id].entries[kind, key] = event_id

    def before(self, timelines: Mapping[str, Timeline]) -> dict[str, dict[StateKey, str | None]]:
        """Returns by room the state before its timeline, at the keys that the timeline changes: key -> event ID.

        The ID is None if there is no entry, or none is known. A room is left out if its timeline changes no keys, or if
        its first event has no stored state.
        """
        keys = {room_id: _keys(timeline.events) for room_id, timeline in timelines.items()}
        firsts = [timelines[room_id].events[0].event_id for room_id in keys if keys[room_id]]
        if not firsts:
            return {}
        groups = dict(rows(sql.BEFORE, {"events": firsts}, self.using))
        wanted = {key for found in keys.values() for key in found}
        states = entries([group for group in groups.values() if group is not None], wanted, self.using)
        return {
            room_id: {key: states.get(group, {}).get(key) if group is not None else None for key in keys[room_id]}
            for room_id, group in groups.items()
        }

    # --- queries --------------------------------------------------------------------------------------------------
    def _allowed(self) -> list[Window]:
        # limited to what the user may read
        self._access = read_access(self._user_id, list(self.windows), self.using)
        for room_id, access in self._access.items():
            window = self.windows[room_id]
            if (
                not access.known or access.forgotten
            ):  # visibility cannot be computed, or the user has forgotten the room
                self.windows[room_id] = replace(window, memberships_only=True)
            if access.membership == "ban" and not access.readable:  # like a user who left: events up to the ban
                up_to = replace(access, known=True, readable=True, peeking=False)
                self._access[room_id] = replace(up_to, cut=window.high, cut_depth=LARGEST)
            elif not access.readable:  # not in the room: only what came while they were joined, or is world-readable
                self._access[room_id] = replace(access, known=True, readable=True, peeking=True)
        return list(self.windows.values())

    def _rows(
        self, text: str, windows: Iterable[Window], more: Mapping[str, Any] | None = None
    ) -> Sequence[tuple[Any, ...]]:
        columns = list(windows)
        text, values = sql.with_tokens(text, self.span.now, self.span.since)
        values |= {
            "rooms": [window.room_id for window in columns],
            "lows": [window.low for window in columns],
            "highs": [window.high for window in columns],
            "wholes": [window.whole for window in columns],
            "own_only": [window.memberships_only for window in columns],
            **(more or {}),
        }
        return rows(text, values, self.using, by_index="scanned" in values)


def _keys(events: Collection[ServedEvent]) -> set[StateKey]:
    return {(event.type, event.state_key) for event in events if event.state_key is not None}
