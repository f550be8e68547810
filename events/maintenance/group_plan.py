"""Plans fewer rows for the state groups of a room, from one snapshot and without a change. Needs no Django.

``events.maintenance.group_compaction`` carries such a plan out. Memory grows with the rows of the new groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from events.errors import CompressionRefused
from state.errors import StateError
from state.groups.collection import GroupPlace
from state.groups.compaction import Compression, Need, WrittenRows

OpenCursor = Callable[[], AbstractContextManager[Any]]
"""Opens a cursor that fetches the rows of one large query bit by bit, in the caller's transaction."""

#: The groups of a room. ``needed``: an event has the group. ``changes_state``: an accepted state event has it, and the
#: group below is the state before that event.
_PLACES = """
SELECT g.id, g.prev_group, g.chain, coalesce(used.needed, false), coalesce(used.changes_state, false)
FROM state_stategroup g LEFT JOIN LATERAL (
    SELECT true AS needed, bool_or(e.state_key IS NOT NULL AND e.rejected_reason IS NULL) AS changes_state
    FROM events_event e WHERE e.state_group = g.id AND e.topological_ordering >= %(cut)s HAVING count(*) > 0
) AS used ON true
WHERE g.room_id = %(room)s ORDER BY g.id
"""
_READ = """
SELECT g.id, g.prev_group, d.type, d.state_key, d.event_id FROM state_stategroup g
LEFT JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id
WHERE g.room_id = %(room)s AND (%(groups)s::bigint[] IS NULL OR g.id = ANY(%(groups)s::bigint[])) ORDER BY g.id
"""
_COUNT_EVENTS = "SELECT count(*) FROM events_event WHERE room_id = %s AND state_group IS NOT NULL"
_NONE = WrittenRows(0, 0)


@dataclass(frozen=True, slots=True)
class PlannedRoom:
    """The figures of a compaction plan. If groups are damaged, there is no plan, and ``refused`` has the reason."""

    room_id: str
    before: WrittenRows = _NONE
    foreseen: WrittenRows = _NONE
    events: int = 0
    """Events that have a state."""
    refused: str | None = None

    @property
    def saving(self) -> float:
        """The share of rows that the plan saves, in percent. It is negative if the plan needs more rows than now."""
        before = self.before.total
        return 100 * (before - self.foreseen.total) / before if before else 0.0


class GroupPlan:
    """The new groups of one room. ``read`` starts the plan, and ``take`` adds groups that were stored later."""

    def __init__(self, room_id: str, open_cursor: OpenCursor) -> None:
        self.room_id, self._open_cursor = room_id, open_cursor
        self.new = Compression()
        self.steps: set[int] = set()
        """Groups of accepted state events."""
        self.highest = 0
        """The last group that was stored when the plan was started."""

    def read(self, cursor: Any) -> PlannedRoom:
        """Plans all groups that are stored in the caller's snapshot. Raises ``CompressionRefused`` if groups are damaged."""
        places, needed, steps = needed_groups(cursor, self.room_id)
        self.highest = places[-1].group if places else 0
        rows = self.add(places, needed, steps, None)
        cursor.execute(_COUNT_EVENTS, [self.room_id])
        (events,) = cursor.fetchone()
        return PlannedRoom(self.room_id, WrittenRows(len(places), rows), self.new.rows(), events)

    def add(
        self, places: Sequence[GroupPlace], needed: Collection[int], steps: Collection[int], only: Sequence[int] | None
    ) -> int:
        """Adds stored groups to the plan: all needed groups, or only the needed groups that are in ``only``.

        ``places`` are all groups of the room, ``needed`` the groups that events need, and ``steps`` the groups of
        accepted state events. Returns the number of delta rows that were read. Raises ``CompressionRefused`` if a group
        is damaged.
        """
        live = live_groups(places, needed)
        self.steps.update(steps)
        count = 0
        for group, prev, changes in self._stored(only):
            count += len(changes)
            if group not in live:
                continue
            need = Need.STEP if group in steps else Need.STATE if group in needed else Need.NOTHING
            try:
                self.new.add_group(group, prev, changes, need)
            except (KeyError, StateError) as error:
                why = f"it is built on {prev}, which is not stored" if isinstance(error, KeyError) else str(error)
                raise CompressionRefused(
                    f"{self.room_id}: state group {group} cannot be rewritten: {why}. Run manage.py room check on the room."
                ) from error
        return count

    def _stored(
        self, only: Sequence[int] | None
    ) -> Iterator[tuple[int, int | None, dict[tuple[str, str], str | None]]]:
        """Yields (group, group below, delta) for all stored groups, or for those in ``only``, in ascending order."""
        names: Mapping[str, Any] = {"room": self.room_id, "groups": only}
        with self._open_cursor() as cursor:
            cursor.execute(_READ, names)
            for (group, prev), rows in groupby(cursor, itemgetter(0, 1)):
                yield group, prev, {(kind, key): event_id for *_, kind, key, event_id in rows if kind is not None}


def plan_room(cursor: Any, room_id: str, open_cursor: OpenCursor) -> PlannedRoom:
    """Returns the figures of a compaction plan for the room, made in the caller's snapshot.

    If the room's groups are damaged, there is no plan, and ``refused`` in the result has the reason.
    """
    try:
        return GroupPlan(room_id, open_cursor).read(cursor)
    except CompressionRefused as error:
        return PlannedRoom(room_id, refused=str(error))


def needed_groups(cursor: Any, room_id: str, cut: int | None = None) -> tuple[list[GroupPlace], set[int], set[int]]:
    """Returns (all groups of the room in ascending order, needed groups, groups of accepted state events).

    Events below depth ``cut`` are ignored. A group is needed if an event has it. For a group of an accepted state
    event, the group right below is needed, too, because it has the state before the event.
    """
    groups: list[GroupPlace] = []
    needed: set[int] = set()
    steps: set[int] = set()
    cursor.execute(_PLACES, {"room": room_id, "cut": -(2**63) if cut is None else cut})
    for group, prev, chain, has_event, changes_state in cursor.fetchall():
        groups.append(GroupPlace(group, prev, chain))
        if has_event:
            needed.add(group)
        if changes_state:
            steps.add(group)
            needed.update(() if prev is None else (prev,))
    return groups, needed, steps


def live_groups(places: Sequence[GroupPlace], needed: Collection[int]) -> set[int]:
    """Returns the needed groups, and all groups on which a needed group is built. ``places`` is in ascending order."""
    live = set(needed)
    # Downwards: a group is built on a group with a lower ID.
    for place in reversed(places):
        if place.group in live and place.prev is not None:
            live.add(place.prev)
    return live
