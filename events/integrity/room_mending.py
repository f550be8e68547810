"""Checks one room, and repairs its damaged rows in one transaction, under the room's lock. Needs no Django.

The caller passes its way of opening transactions (``RoomTransactions``). So a process of the site and a task of Spark run
the same steps. Writers need not be stopped. Events whose state is wrong get new state groups, built on stored groups that
are right. Wrong groups that no event needs any more are deleted. A value that cannot be recomputed is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from events.columns import COLUMNS
from events.errors import RangesDisagree
from events.integrity.compare import Difference, RoomReport, compare, differences, includes_subject
from events.integrity.expected_rows import Computed, compute, stored_before
from events.integrity.stored_rows import Mark, read_mark, read_room
from events.rows import CHANGE_ROOM, LOCK_ROOM, RoomRows, drop_unused_groups, key_of, write
from events.visibility.open_ranges import check_open_ranges
from events.visibility.ranges import replaced_ranges
from state.group_ids import reserve_group_ids
from state.groups.deltas import GroupBuilder, StoredGroup
from streams.runtime.gc_pause import collector_paused

#: Computes the row of the list of rooms again, after the tables that it is computed from are right.
_SUMMARIZE = "SELECT events_summarize(ARRAY[%s])"


@dataclass(frozen=True, slots=True)
class Found:
    """The report on a room from one snapshot, and the values that its rows should have.

    ``mark`` shows later whether the rows were written since (``stored_rows.Mark``). None: nothing is to be repaired.
    """

    report: RoomReport
    computed: Computed
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class Mended:
    """The report on a room under its lock, before the repair.

    ``moved`` are the users whose membership in the current state was wrong, or whose membership event had content that
    it should not have. None: neither the current state nor the content of an event was wrong, so other processes need
    no notification.
    """

    before: RoomReport
    moved: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Resynced:
    """The reports on a room before and after a repair. If nothing was repaired, the two reports are the same object."""

    before: RoomReport
    after: RoomReport


@dataclass(frozen=True, slots=True)
class RoomTransactions:
    """Functions of the caller that open the transactions for checking and repairing a room."""

    snapshot: Callable[[], AbstractContextManager[Any]]
    """``snapshot()`` yields a cursor that reads one snapshot."""
    writing: Callable[[], AbstractContextManager[Any]]
    """``writing()`` yields a cursor in a transaction that the end of the block commits."""
    notify: Callable[[Any, str, Sequence[str]], None]
    """``notify(cursor, room ID, Mended.moved)`` makes other processes drop what they cached, once ``writing`` commits."""


def check(transactions: RoomTransactions, room_id: str) -> RoomReport | None:
    with collector_paused():  # all objects of a room live until it is done, so a collection would find nothing
        found = _in_snapshot(transactions, room_id)
    return None if found is None else found.report


def resync(transactions: RoomTransactions, room_id: str, subject: str, *, mend: bool) -> Resynced | None:
    """Repairs the rows of a room that belong to ``subject`` and differ from the computed rows.

    Returns the reports before and after the repair, or None if there is no such room. If ``mend`` is false, or if no
    row of the subject differs, nothing is repaired and the room is not locked. Then the report before the repair is
    returned as the second report, too. If the repaired ranges would contradict the current state (``RangesDisagree``),
    nothing is written, and the second report has the error as a doubt.
    """
    with collector_paused():
        found = _in_snapshot(transactions, room_id, subject)
        if found is None:
            return None
        if not mend or not found.report.of(subject):
            return Resynced(found.report, found.report)
        try:
            # One transaction: no process sees repaired rows without dropping what it cached, and a process that is killed
            # leaves both changes or neither.
            with transactions.writing() as cursor:
                mended = repair_room(cursor, room_id, subject, found)
                if mended is not None and mended.moved is not None:
                    transactions.notify(cursor, room_id, mended.moved)
        except RangesDisagree as error:  # the transaction was rolled back
            return Resynced(found.report, _left_as_it_is(found.report, error))
        del found  # it may be large
        after = check(transactions, room_id)
    return None if mended is None or after is None else Resynced(mended.before, after)


def _in_snapshot(transactions: RoomTransactions, room_id: str, subject: str | None = None) -> Found | None:
    with transactions.snapshot() as cursor:
        return find_damage(cursor, room_id, subject)


def find_damage(cursor: Any, room_id: str, subject: str | None = None) -> Found | None:
    """Compares the stored rows of a room with the JSON of its events, in the caller's snapshot.

    None: no such room.

    Give ``subject`` if ``repair_room`` will repair it with this result. If a row of the subject differs, the result
    then has a ``mark``.
    """
    rows = read_room(cursor, room_id)
    if rows is None:
        return None
    computed = compute(rows)
    report = compare(rows, computed)
    wrong = subject is not None and report.of(subject)
    return Found(report, computed, read_mark(cursor, room_id) if wrong else None)


def repair_room(cursor: Any, room_id: str, subject: str, found: Found | None = None) -> Mended | None:
    """Repairs the differences of a subject, in the caller's transaction.

    Returns None if there is no such room.

    ``found`` is the result of ``find_damage`` without the lock. If the room's rows have changed since, the damage is
    searched again. If ``moved`` in the result is not None, the caller must notify other processes of a changed current
    state in the same transaction. Raises ``RangesDisagree`` if the stored current state is wrong, but belongs to a
    subject that is not repaired. The repaired ranges would contradict this current state.
    """
    # The lock that ``persist`` takes, and first as there. From here on no other transaction writes in the room.
    cursor.execute(LOCK_ROOM, [room_id])
    # A finds damage without the lock, B writes in the room and commits, A gets the lock. The mark differs then, and A
    # has to compute again, or it would undo what B wrote.
    if found is None or found.mark is None or found.mark != read_mark(cursor, room_id):
        found = find_damage(cursor, room_id)
    if found is None:
        return None
    wrong = found.report.of(subject)
    moved = _Repair(found.computed, cursor).mend(subject) if wrong else None
    cursor.execute(_SUMMARIZE, [room_id])
    return Mended(found.report, moved)


def _left_as_it_is(report: RoomReport, error: RangesDisagree) -> RoomReport:
    found = replace(report, differences=[*report.differences], totals=Counter(report.totals), doubts=[*report.doubts])
    found.doubt(str(error))
    return found


class _Repair:
    def __init__(self, computed: Computed, cursor: Any) -> None:
        self._computed = computed
        self._room_id = computed.rows.room_id
        self._cursor = cursor
        self._rows = RoomRows()
        self._wrong_states: set[str] = set()
        self._moved: set[str] = set()
        """See ``Mended.moved``."""
        self._current_state = False
        self._ranges = False

    def mend(self, subject: str) -> Sequence[str] | None:
        for difference in differences(self._computed):
            if includes_subject(subject, difference.subject) and difference.mendable:
                self._collect(difference)
        groups = _Groups(self._computed, self._wrong_states)
        if self._wrong_states:
            groups.add_to(self._rows, self._cursor)
        write(self._cursor, self._rows)
        if self._wrong_states:
            drop_unused_groups(self._cursor, groups.replaced)
        # Replaced as a whole, however many rows differ, and only now: they have to fit the current state as it is stored.
        if self._ranges:
            known = self._computed.known_ranges
            if known is not None:
                check_open_ranges(self._cursor, self._room_id, known)
            write(self._cursor, replaced_ranges(self._room_id, known or ()))
        self._cursor.execute(CHANGE_ROOM, [self._room_id])
        return sorted(self._moved) if self._current_state else None

    def _collect(self, found: Difference) -> None:
        table, column, key = found.table, found.column, found.key
        self._ranges |= table == "events_eventvisibility" or column == "visibility_unresolved"
        self._current_state |= table == "events_currentstate" or column == "current_state_unresolved"
        if column in ("redacted_by", "json"):
            self._announce_less_content(key)
        if column.startswith("state "):
            self._wrong_states.add(key)
        elif table in ("events_room", "events_event", "events_eventjson"):
            value = self._computed.events[key].json if column == "json" else found.computed
            self._rows.change(table, key, **{column: value})
        elif table != "events_eventvisibility":
            self._collect_row(table, key, found.stored, found.computed)

    def _collect_row(self, table: str, key: str, stored: Any, computed: Any) -> None:
        values: dict[str, Any] = {"room_id": self._room_id, "event_id": key, "prev_event_id": computed or stored}
        if table == "events_currentstate":
            values["type"], _, values["state_key"] = key.partition(" ")
            values["event_id"], values["membership"] = computed or (None, None)
            if values["type"] == "m.room.member":
                self._moved.add(values["state_key"])
        elif table == "events_eventauth":
            values["auth_event_ids"] = computed and list(computed)
        if computed is None or table == "events_eventauth":
            self._rows.remove(table, [values[name] for name in key_of(table)])
        if computed is not None:
            self._rows.add(table, *(values[name] for name in COLUMNS[table]))

    def _announce_less_content(self, event_id: str) -> None:
        # It is served without part of its content from now on: others are notified as if the current state had changed.
        event = self._computed.events[event_id]
        self._current_state = True
        if event.type == "m.room.member" and event.state_key is not None:
            self._moved.add(event.state_key)


class _Groups:
    # The new state groups of events whose stored groups are wrong.
    def __init__(self, computed: Computed, wrong: Collection[str]) -> None:
        self._computed = computed
        self._stored, self._states = computed.stored, computed.states
        self._rows = [row for row in computed.rows.events if row.event_id in wrong]
        self._builder = GroupBuilder()
        self._ids: dict[int, int] = {}
        """The builder's number of a stored group -> its ID."""
        self._right = {digest: group for group, digest in self._stored.digests.items()}
        self._numbers: dict[int, int] = {}
        """Computed group -> the builder's number of a group with that state."""

    @property
    def replaced(self) -> list[int]:
        old = {row.state_group for row in self._rows} | {stored_before(row, self._stored) for row in self._rows}
        return sorted(group for group in old if group is not None)

    def add_to(self, rows: RoomRows, cursor: Any) -> None:
        numbers = {row.event_id: self._after(row.event_id) for row in self._rows}
        new = sorted(self._builder.kept(set(numbers.values())) - self._ids.keys())
        # New IDs, never other rows under old ones: processes cache groups by ID, because these never change.
        ids = {**self._ids, **dict(zip(new, reserve_group_ids(cursor, len(new)), strict=True))}
        rows.add_groups(self._computed.rows.room_id, self._builder, new, ids, ids)
        for event_id, number in numbers.items():
            rows.change("events_event", event_id, state_group=ids[number])

    def _after(self, event_id: str) -> int:
        # That of a state event is built on the group before the event, because the group below is read as the state
        # before.
        after, before = self._computed.after[event_id], self._computed.before.get(event_id)
        event = self._computed.events[event_id]
        if before is None or before == after or event.state_key is None:
            return self._number(after)
        if after not in self._numbers:
            self._numbers[after] = self._builder.add(self._number(before), {(event.type, event.state_key): event_id})
        return self._numbers[after]

    def _number(self, group: int) -> int:
        # A stored group with the same state, or else a new one, on top of a stored group if possible.
        unbuilt = []
        below: int | None = group
        while below is not None and below not in self._numbers and not self._adopt(below):
            unbuilt.append(below)
            below = self._states.builder.step(below)[0]
        for number in reversed(unbuilt):
            prev, changes = self._states.builder.step(number)
            if prev is None:
                state = {key: event_id for key, event_id in changes.items() if event_id is not None}
                self._numbers[number] = self._builder.add_full(state)
            else:
                self._numbers[number] = self._builder.add(self._numbers[prev], changes)
        return self._numbers[group]

    def _adopt(self, group: int) -> bool:
        stored = self._right.get(self._states.digests.of(group))
        if stored is None:
            return False
        _, _, _, hops, _, rows_to_read = self._stored.rows[stored]
        state = self._stored.state(stored)
        # Not as a tip: the chain of a stored group may go on already, so new groups on top of it begin a chain.
        number = self._builder.adopt(StoredGroup(state, hops, len(state), rows_to_read, is_tip=False))
        self._numbers[group], self._ids[number] = number, stored
        return True
