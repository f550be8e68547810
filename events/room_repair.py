"""Damaged rows of a room -> what they should be, in one transaction under the room's lock, beside writers.

State groups are never rewritten in place, because processes keep what they have read of them: events whose state is wrong get
new groups, built on stored ones that are right, and wrong ones that nobody reads any more go. What cannot be recomputed is left
as it is. The lock is the one that ``persist`` takes, and it is taken first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django.db.models import F

from events.models import Event, EventVisibility, Room
from events.room_check import Computed, compute, stored_before
from events.room_comparison import Difference, RoomReport, compare, differences
from events.stored_room import forget_kept
from events.stored_rows import read_room
from state.deltas import GroupBuilder, StoredGroup
from state.models import StateGroup, StateGroupDelta
from state.store import reserve_group_ids
from streams.caching import invalidate_room_state
from streams.one_view import one_view

__all__ = ["Resynced", "check_room", "resync_room"]

_LOCK = "SELECT FROM events_room WHERE room_id = %s FOR UPDATE"
_PUT_STATE = """
INSERT INTO events_currentstate (room_id, type, state_key, event_id, membership) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (room_id, type, state_key) DO UPDATE SET event_id = excluded.event_id, membership = excluded.membership
"""
_DROP_STATE = "DELETE FROM events_currentstate WHERE room_id = %s AND type = %s AND state_key = %s"
_PUT_AUTH = """
INSERT INTO events_eventauth (event_id, auth_event_ids) VALUES (%s, %s)
ON CONFLICT (event_id) DO UPDATE SET auth_event_ids = excluded.auth_event_ids
"""
_SET_GROUPS = """
UPDATE events_event e SET state_group = right_one.state_group
FROM unnest(%s::text[], %s::bigint[]) AS right_one (event_id, state_group) WHERE e.event_id = right_one.event_id
"""
#: Groups that no event has and nothing that an event has is built on.
_DROP_GROUPS = """
WITH RECURSIVE used AS (
    SELECT g.chain, g.id FROM state_stategroup g JOIN events_event e ON e.state_group = g.id WHERE e.room_id = %(room)s
    UNION
    SELECT below.chain, below.id FROM used
    JOIN state_stategroup own ON own.id IN (used.id, used.chain)
    JOIN state_stategroup below ON below.id = own.prev_group
), gone AS (
    DELETE FROM state_stategroup g WHERE g.id = ANY(%(groups)s) AND g.room_id = %(room)s
      AND NOT EXISTS (SELECT FROM used WHERE used.chain = g.chain AND used.id >= g.id)
    RETURNING g.chain, g.id
) DELETE FROM state_stategroupdelta d USING gone WHERE d.chain = gone.chain AND d.state_group = gone.id
"""


@dataclass(frozen=True, slots=True)
class Resynced:
    """What was found of a room before and after; null: there is no such room."""

    before: RoomReport
    after: RoomReport


def check_room(room_id: str, using: str = "default") -> RoomReport | None:
    """Compare everything that is stored of a room with what its JSON says; null where there is no such room."""
    with one_view(using) as cursor:
        rows = read_room(cursor, room_id)
    return None if rows is None else compare(rows)


def resync_room(room_id: str, subject: str, using: str = "default", *, dry_run: bool = False) -> Resynced | None:
    """Mend what differs of one subject (``room_comparison.SUBJECTS``); a room that is well is never locked."""
    before = check_room(room_id, using)
    if before is None:
        return None
    if dry_run or not before.of(subject):
        return Resynced(before, before)
    with transaction.atomic(using=using):
        with connections[using].cursor() as cursor:
            cursor.execute(_LOCK, [room_id])
            rows = read_room(cursor, room_id)
        if rows is None:
            return None
        computed = compute(rows)
        before = compare(rows, computed)
        _Repair(computed, using).mend(subject)
    forget_kept()
    after = check_room(room_id, using)
    return None if after is None else Resynced(before, after)


class _Repair:
    """The repair of one room, which is locked."""

    def __init__(self, computed: Computed, using: str) -> None:
        self._computed = computed
        self._room_id = computed.rows.room_id
        self._using = using
        self._wrong_states: set[str] = set()
        self._moved: set[str] = set()
        """Users whose membership in the current state was wrong."""
        self._current_state = False
        self._ranges = False
        self._tables: Mapping[str, Callable[[Difference], None]] = {
            "events_room": self._room,
            "events_event": self._event,
            "events_eventedge": self._edge,
            "events_eventauth": self._auth,
            "events_currentstate": self._state_entry,
            "events_forwardextremity": self._extremity,
            "events_backwardextremity": self._extremity,
            "events_eventvisibility": self._range,
            "state_stategroupdelta": self._state,
        }

    def mend(self, subject: str) -> None:
        """Everything of a subject that can be recomputed, then tell whoever keeps something of it."""
        for difference in differences(self._computed):
            if difference.subject == subject and difference.mendable:
                self._tables[difference.table](difference)
        if self._wrong_states:
            _Groups(self._computed, self._wrong_states, self._using).write()
        if self._ranges:
            self._write_ranges()
        Room.objects.using(self._using).filter(pk=self._room_id).update(content_generation=F("content_generation") + 1)
        if self._current_state:
            invalidate_room_state(self._room_id, sorted(self._moved))

    def _run(self, statement: str, *values: Any) -> None:
        with connections[self._using].cursor() as cursor:
            cursor.execute(statement, values)

    def _room(self, found: Difference) -> None:
        Room.objects.using(self._using).filter(pk=self._room_id).update(**{found.column: found.computed})
        self._ranges |= found.column == "visibility_unresolved"
        self._current_state |= found.column == "current_state_unresolved"

    def _event(self, found: Difference) -> None:
        if found.column.startswith("state "):
            self._state(found)
            return
        row = Event.objects.using(self._using).filter(event_id=found.key)
        row.update(**{found.column: found.computed})

    def _state(self, found: Difference) -> None:
        self._wrong_states.add(found.key)

    def _edge(self, found: Difference) -> None:
        if found.stored is not None:
            self._run(
                "DELETE FROM events_eventedge WHERE event_id = %s AND prev_event_id = %s", found.key, found.stored
            )
        else:
            self._run(
                "INSERT INTO events_eventedge (event_id, prev_event_id) VALUES (%s, %s)", found.key, found.computed
            )

    def _auth(self, found: Difference) -> None:
        if found.computed is None:
            self._run("DELETE FROM events_eventauth WHERE event_id = %s", found.key)
        else:
            self._run(_PUT_AUTH, found.key, list(found.computed))

    def _state_entry(self, found: Difference) -> None:
        event_type, _, state_key = found.key.partition(" ")
        self._current_state = True
        if event_type == "m.room.member":
            self._moved.add(state_key)
        if found.computed is None:
            self._run(_DROP_STATE, self._room_id, event_type, state_key)
        else:
            self._run(_PUT_STATE, self._room_id, event_type, state_key, *found.computed)

    def _extremity(self, found: Difference) -> None:
        if found.computed is None:
            self._run(f"DELETE FROM {found.table} WHERE room_id = %s AND event_id = %s", self._room_id, found.key)
        else:
            self._run(f"INSERT INTO {found.table} (room_id, event_id) VALUES (%s, %s)", self._room_id, found.key)

    def _range(self, _found: Difference) -> None:
        self._ranges = True

    def _write_ranges(self) -> None:
        EventVisibility.objects.using(self._using).filter(room_id=self._room_id).delete()
        known = self._computed.ranges if self._computed.current_group is not None else None
        EventVisibility.objects.using(self._using).bulk_create(
            EventVisibility(room_id=self._room_id, user_id=row.user_id, kind=row.kind, first=row.first, last=row.last)
            for row in known or ()
        )


class _Groups:
    """New groups for events whose stored ones are wrong."""

    def __init__(self, computed: Computed, wrong: Collection[str], using: str) -> None:
        self._computed = computed
        self._stored, self._states = computed.stored, computed.states
        self._rows = [row for row in computed.rows.events if row.event_id in wrong]
        self._using = using
        self._builder = GroupBuilder()
        self._ids: dict[int, int] = {}
        """Number of a stored group -> its ID."""
        self._right = {digest: group for group, digest in self._stored.digests.items()}
        self._numbers: dict[int, int] = {}
        """Computed group -> the number of a group with that state."""

    def write(self) -> None:
        """The rows, the events' groups, and away with what nobody reads any more."""
        numbers = {row.event_id: self._after(row.event_id) for row in self._rows}
        new = sorted(self._builder.kept(set(numbers.values())) - self._ids.keys())
        with connections[self._using].cursor() as cursor:
            ids = {**self._ids, **dict(zip(new, reserve_group_ids(cursor, len(new)), strict=True))}
            self._write_rows(new, ids)
            groups = [ids[number] for number in numbers.values()]
            cursor.execute(_SET_GROUPS, [list(numbers), groups])
            old = {row.state_group for row in self._rows} | {stored_before(row, self._stored) for row in self._rows}
            unused = sorted(group for group in old if group is not None)
            cursor.execute(_DROP_GROUPS, {"room": self._computed.rows.room_id, "groups": unused})

    def _after(self, event_id: str) -> int:
        """The number of the group after an event: of a state event it lies on top of the one before it."""
        after, before = self._states.after[event_id], self._states.before.get(event_id)
        event = self._computed.events[event_id]
        if before is None or before == after or event.state_key is None:
            return self._number(after)
        if after not in self._numbers:
            self._numbers[after] = self._builder.add(self._number(before), {(event.type, event.state_key): event_id})
        return self._numbers[after]

    def _number(self, group: int) -> int:
        """A group with the state of a computed one: a stored one that has it, or a new one on top of such."""
        line = []
        below: int | None = group
        while below is not None and below not in self._numbers and not self._adopt(below):
            line.append(below)
            below = self._states.builder.step(below)[0]
        for one in reversed(line):
            prev, changes = self._states.builder.step(one)
            if prev is None:
                whole = {key: event_id for key, event_id in changes.items() if event_id is not None}
                self._numbers[one] = self._builder.add_full(whole)
            else:
                self._numbers[one] = self._builder.add(self._numbers[prev], changes)
        return self._numbers[group]

    def _adopt(self, group: int) -> bool:
        """Take a stored group that has the same state, if there is one; new ones on top of it begin a chain."""
        stored = self._right.get(self._states.digests.of(group))
        if stored is None:
            return False
        _, _, _, hops, _, rows_to_read = self._stored.rows[stored]
        number = self._builder.adopt(StoredGroup(self._stored.state(stored), hops, rows_to_read, is_tip=False))
        self._numbers[group], self._ids[number] = number, stored
        return True

    def _write_rows(self, new: Sequence[int], ids: Mapping[int, int]) -> None:
        StateGroup.objects.using(self._using).bulk_create(
            StateGroup(
                id=ids[number],
                room_id=self._computed.rows.room_id,
                prev_group=None if prev is None else ids[prev],
                chain=ids[chain],
                hops=hops,
                keys=keys,
                rows_to_read=to_read,
            )
            for number, prev, chain, hops, keys, to_read in self._builder.group_rows(new)
        )
        StateGroupDelta.objects.using(self._using).bulk_create(
            StateGroupDelta(chain=ids[chain], state_group=ids[group], type=kind, state_key=key, event_id=event_id)
            for chain, group, kind, key, event_id in self._builder.delta_rows(new)
        )
