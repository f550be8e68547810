"""Rewrites the state groups of a room to fewer rows, by a plan of ``state.groups.compaction``.

The room is read and written meanwhile. Stored groups are never changed, because processes cache them. New groups are
written under new IDs. No query uses a new group as long as no event has it. Then events move to them in small
transactions, each after the old and new states were read back and found equal. Further rounds handle groups that
writers meanwhile built on old groups. At the end the old groups are deleted, like all groups that no event needs
(``events.maintenance.group_gc``).

The work may be stopped after any transaction, because every event always has a group with its state. A later run makes
a new plan from what is stored then. Assumes that no purge of the room runs meanwhile
(``events.maintenance.purge_lock``). Memory grows with the number of new groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from django.db import connections, transaction

from events.errors import CompressionWentWrong
from events.maintenance.group_gc import GroupPurge, plan_groups
from events.maintenance.group_plan import GroupPlan, PlannedRoom, live_groups, needed_groups, plan_room
from events.room_lock import changing_room
from events.rows import LOCK_ROOM, RoomRows, write
from state.errors import StateError
from state.groups.compaction import WrittenRows
from state.store import full_states, reserve_group_ids
from streams.db.consistent_read import read_only_snapshot
from streams.runtime.batches import bounded_batches

_ROWS_PER_TRANSACTION = 5_000
_EVENTS_PER_TRANSACTION = 1_000
_PAIRS_PER_TRANSACTION = 200
#: Limit of the entries of states that are compared in one transaction.
_ENTRIES_PER_TRANSACTION = 200_000
#: Each round moves what writers stored during the one before, which becomes less each time.
_MOST_ROUNDS = 8
_MOST_PASSES = 3

_COUNT = """
SELECT count(DISTINCT g.id), count(d.chain) FROM state_stategroup g
LEFT JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id WHERE g.room_id = %s
"""
_STORED = "SELECT id FROM state_stategroup WHERE id = ANY(%s) ORDER BY id"
_PREVS = "SELECT id, prev_group FROM state_stategroup WHERE id = ANY(%s)"
_MOVING = """
SELECT e.event_id, pair.new FROM unnest(%(olds)s::bigint[], %(news)s::bigint[]) AS pair (old, new)
JOIN events_event e ON e.state_group = pair.old LIMIT %(limit)s
"""


def group_rows(room_id: str, using: str) -> WrittenRows:
    """Returns the number of rows that the state groups of a room take now."""
    with connections[using].cursor() as cursor:
        cursor.execute(_COUNT, [room_id])
        return WrittenRows(*cursor.fetchone())


def plan_here(room_id: str, using: str) -> PlannedRoom:
    """Returns the figures of a new compaction plan for the room.

    If the room's groups are damaged, there is no plan, and ``refused`` in the result has the reason.
    """
    with read_only_snapshot(using, is_long=True) as cursor:
        return plan_room(cursor, room_id, partial(_open_cursor, using))


def _open_cursor(using: str) -> closing[Any]:
    return closing(connections[using].chunked_cursor())


class RoomCompaction:
    """The compaction of one room's groups. Call ``plan`` first. Call ``carry_out`` if the saving is large enough."""

    def __init__(self, room_id: str, using: str) -> None:
        self.room_id, self._using = room_id, using
        self.planned = PlannedRoom(room_id)
        """The figures of the last ``plan``."""
        self.moved = 0
        self.finished = True
        """False if old groups are still in use after ``carry_out``: writers stored events with them meanwhile."""
        self._plan = GroupPlan(room_id, partial(_open_cursor, using))
        self._ids: dict[int, int] = {}
        """The builder's number of a new group -> its ID, once it is stored."""

    def plan(self) -> PlannedRoom:
        """Reads the room and computes its new groups, without a change. Returns the figures.

        Raises ``CompressionRefused`` if groups are damaged.
        """
        self.planned = self._read_all()
        return self.planned

    def carry_out(self) -> Iterator[int]:
        """Writes the new groups, moves the events, and deletes the old groups.

        Yields the number of events moved so far after every transaction. If some old groups are still in use after
        ``_MOST_PASSES`` passes, ``finished`` is false. Raises ``CompressionWentWrong``. After this error, and after a
        stop, the caller should call ``clean_up``, which deletes the new groups that no event has.
        """
        for number in range(_MOST_PASSES):
            if number:
                # A moves the last events and finds none left. B stores an event with an old group and commits. A's
                # ``clean_up`` keeps that group, so A plans again.
                self._read_all()
            for _ in self._pass():
                yield self.moved
            old = sorted(self._plan.new.numbers)
            for _ in self.clean_up():
                yield self.moved
            self.finished = not self._are_here(old)
            if self.finished:
                return

    def _pass(self) -> Iterator[None]:
        """Writes new groups and moves events to them. Yields after every transaction.

        Ends when no event has an old group and no needed group is built on an old group. Gives up after
        ``_MOST_ROUNDS`` rounds.
        """
        moving = sorted(self._plan.new.numbers)
        for _ in range(_MOST_ROUNDS):
            yield from self._write()
            for batch in self._batches(moving):
                yield from self._move(batch)
            if not (moving := self._left()):
                return

    def clean_up(self) -> Iterator[None]:
        """Deletes the groups that no event needs, old or new. Yields after every transaction."""
        for _ in GroupPurge(self.room_id, self._using, plan_groups(self.room_id, self._using)).carry_out():
            yield

    # --- reading ------------------------------------------------------------------------------------------------

    def _read_all(self) -> PlannedRoom:
        """Starts a new plan from the groups that are stored now. Returns its figures."""
        self._plan, self._ids = GroupPlan(self.room_id, partial(_open_cursor, self._using)), {}
        with read_only_snapshot(self._using, is_long=True) as cursor:
            return self._plan.read(cursor)

    def _left(self) -> list[int]:
        """Returns the groups whose events have to be moved to new groups of the plan in the next round.

        These are groups of two kinds: groups that the plan replaces and that an event still needs, and groups that were
        stored after the plan was made and are built on replaced groups. Adds the groups of the second kind to the plan.
        """
        with read_only_snapshot(self._using, is_long=True) as cursor:
            places, needed, steps = needed_groups(cursor, self.room_id)
            live = live_groups(places, needed)
            standing = set(self._ids.values())
            late = []
            # Writers may have stored groups since the plan was made. Those built on new groups, or on no group, may
            # stay. The others are late.
            for place in places:
                if place.group <= self._plan.highest or place.group in standing or place.group not in live:
                    continue
                begins_chain = place.chain == place.group
                if place.prev is None or (place.prev in standing and (begins_chain or place.chain in standing)):
                    standing.add(place.group)
                else:
                    late.append(place.group)
            again = sorted(needed & self._plan.new.numbers.keys())
            if new := [group for group in late if group not in self._plan.new.numbers]:
                self._plan.new.end_chains()
                self._plan.add(places, needed, steps, new)
            return sorted({*again, *(group for group in new if group in self._plan.new.numbers)})

    def _are_here(self, groups: list[int]) -> bool:
        with connections[self._using].cursor() as cursor:
            cursor.execute(_STORED, [groups])
            return cursor.fetchone() is not None

    # --- new groups ---------------------------------------------------------------------------------------------

    def _write(self) -> Iterator[None]:
        """Stores those new groups of the plan that are not stored yet. Yields after every transaction.

        No event has these groups yet, so no query uses them.
        """
        builder = self._plan.new.builder
        new = sorted(builder.kept(self._plan.new.numbers.values()) - self._ids.keys())
        if not new:
            return
        with connections[self._using].cursor() as cursor:
            ids = dict(zip(new, reserve_group_ids(cursor, len(new)), strict=True))
        self._ids |= ids
        self._plan.new.mark_stored(ids)
        rows = {number: len(builder.step(number)[1]) for number in new}
        for part in bounded_batches(new, rows.__getitem__, _ROWS_PER_TRANSACTION, _ROWS_PER_TRANSACTION):
            self._write_part(part)
            yield

    def _write_part(self, numbers: Sequence[int]) -> None:
        rows = RoomRows()
        rows.add_groups(self.room_id, self._plan.new.builder, numbers, self._ids, self._ids)
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
            write(cursor, rows)

    # --- events -------------------------------------------------------------------------------------------------

    def _batches(self, old: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
        """Yields lists of pairs (old group, new group).

        Each list is so small that the states of its groups can be compared at once.
        """
        keys = [row[4] for row in self._plan.new.builder.group_rows()]
        sizes = {group: 2 * keys[self._plan.new.numbers[group]] for group in old}
        for part in bounded_batches(old, sizes.__getitem__, _ENTRIES_PER_TRANSACTION, _PAIRS_PER_TRANSACTION):
            yield [(group, self._ids[self._plan.new.numbers[group]]) for group in part]

    def _move(self, pairs: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Moves events from old groups to new groups, after checking that the two groups of each pair have equal states.

        Yields after every transaction. Raises ``CompressionWentWrong``.
        """
        olds, news = [old for old, _ in pairs], [new for _, new in pairs]
        names: dict[str, Any] = {"olds": olds, "news": news, "limit": _EVENTS_PER_TRANSACTION}
        # Before the lock, because reading takes long, and the state of a stored group never changes.
        with connections[self._using].cursor() as cursor:
            self._compare(cursor, pairs)
        while True:
            with changing_room(self.room_id, self._using, LOCK_ROOM) as (cursor, rows):
                # No event has the new groups yet, so another job that deletes unneeded groups may have deleted them.
                cursor.execute(_STORED, [sorted(set(news))])
                if len(cursor.fetchall()) != len(set(news)):
                    raise CompressionWentWrong(
                        f"{self.room_id}: another session deleted new state groups before events referred to them. "
                        "Run compress_state again."
                    )
                cursor.execute(_MOVING, names)
                moving = cursor.fetchall()
                for event_id, group in moving:
                    rows.change("events_event", event_id, state_group=group)
            self.moved += len(moving)
            yield
            if len(moving) < _EVENTS_PER_TRANSACTION:
                return

    def _compare(self, cursor: Any, pairs: Sequence[tuple[int, int]]) -> None:
        """Raises ``CompressionWentWrong`` unless each pair of groups has equal states.

        If a group is the state after an accepted state event, the group below it is compared, too. This is the state
        before the event.
        """
        wanted: set[tuple[int | None, int | None]] = set(pairs)
        cursor.execute(_PREVS, [sorted({group for pair in pairs for group in pair})])
        prevs = dict(cursor.fetchall())
        for old, new in pairs:
            if old in self._plan.steps and (prevs.get(old), prevs.get(new)) != (None, None):
                wanted.add((prevs.get(old), prevs.get(new)))
        try:
            found = full_states({group for pair in wanted for group in pair if group is not None}, self._using)
        except StateError as error:
            raise CompressionWentWrong(
                f"{self.room_id}: {error} Nothing was changed. Run manage.py room check."
            ) from error
        for before, after in wanted:
            if before is None or after is None or found[before] != found[after]:
                raise CompressionWentWrong(
                    f"{self.room_id}: state group {before} would read differently as {after}; no event was changed. "
                    "Run manage.py room check on the room."
                )
