"""Deletes the state groups of a room that no event needs any more, by a plan of ``state.groups.collection``.

The plan lists groups to delete, and *runs*: unneeded neighbours in a chain, which are merged into one group. Rows are
deleted or moved, and none is added. Transactions are small, and each locks the room's row first, as every write to a
room does. Under that lock two conditions are checked: no event or other group needs a planned group by now, and the
state of the group above a merged run is the same as before. The work may be stopped after any transaction and run
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from django.db import connections

from events.errors import PurgeWentWrong
from events.maintenance.group_plan import needed_groups
from events.room_lock import changing_room
from events.rows import LOCK_ROOM, drop_groups, drop_unused_groups
from state.groups.collection import GroupCollection, Run, plan_collection
from state.store import StateDigest, state_digest

_GROUPS_PER_TRANSACTION = 500
_MOST_GROUPS_PER_TRANSACTION = 5_000
_PIECES_OF_A_STATE = 20
_RUNS_PER_TRANSACTION = 20

_ROOMS = "SELECT DISTINCT room_id FROM state_stategroup ORDER BY room_id"
_RUNS = """
WITH run AS (
    SELECT * FROM unnest(%(chains)s::bigint[], %(lows)s::bigint[], %(highs)s::bigint[], %(targets)s::bigint[])
    AS run (chain, low, high, target)
), ranked AS MATERIALIZED (
    SELECT run.target, d.chain, d.state_group, d.type, d.state_key,
        row_number() OVER (PARTITION BY run.target, d.type, d.state_key ORDER BY d.state_group DESC) > 1
        OR (d.event_id IS NULL AND g.prev_group IS NULL AND run.low = run.target) AS superseded
    FROM run JOIN state_stategroup g ON g.id = run.target
    JOIN state_stategroupdelta d ON d.chain = run.chain AND d.state_group BETWEEN run.low AND run.high
)
"""
_COUNT_RUNS = (
    _RUNS
    + """
SELECT target, count(*) FILTER (WHERE superseded), count(*) FILTER (WHERE NOT superseded AND state_group <> target)
FROM ranked GROUP BY target
"""
)
#: Compares the rows of a part of a run with each other, and with the target's rows at the same keys. The target may
#: have very many rows, so these are looked up key by key.
_DROP_SUPERSEDED = """
WITH piece AS MATERIALIZED (
    SELECT ctid AS place, state_group, type, state_key, event_id FROM state_stategroupdelta
    WHERE chain = %(chain)s AND state_group BETWEEN %(first)s AND %(last)s
), beside AS (
    SELECT own.* FROM (SELECT DISTINCT type, state_key FROM piece) AS key CROSS JOIN LATERAL (
        SELECT ctid AS place, state_group, type, state_key, event_id FROM state_stategroupdelta d
        WHERE d.chain = %(chain)s AND d.state_group = %(target)s AND d.type = key.type AND d.state_key = key.state_key OFFSET 0
    ) AS own
), ranked AS (
    SELECT place, row_number() OVER (PARTITION BY type, state_key ORDER BY state_group DESC) > 1
        OR (event_id IS NULL AND %(target)s < %(first)s
            AND EXISTS (SELECT FROM state_stategroup WHERE id = %(target)s AND prev_group IS NULL)) AS superseded
    FROM (SELECT * FROM piece UNION ALL SELECT * FROM beside) AS both_of_them
)
DELETE FROM state_stategroupdelta WHERE ctid = ANY(ARRAY(SELECT place FROM ranked WHERE superseded))
"""
_MOVE_ROWS = """
UPDATE state_stategroupdelta SET state_group = %(target)s WHERE chain = %(chain)s AND state_group BETWEEN %(first)s AND %(last)s
"""
#: A target at the beginning of its chain takes over the state of the highest group that was merged into it.
_BECOME_HIGHEST = """
UPDATE state_stategroup target SET keys = high.keys, rows_to_read = high.rows_to_read - %(dropped)s
FROM state_stategroup high WHERE target.id = %(target)s AND high.id = %(high)s
"""
_STAND_LOWER = """
UPDATE state_stategroup target SET prev_group = low.prev_group, rows_to_read = target.rows_to_read - %(dropped)s
FROM state_stategroup low WHERE target.id = %(target)s AND low.id = %(low)s
"""
_STAND_ON_TARGET = "UPDATE state_stategroup SET prev_group = %(target)s WHERE prev_group = %(high)s"
_LOOSE_NOW = """
SELECT EXISTS (SELECT FROM events_event e WHERE e.state_group = ANY(%(loose)s))
    OR EXISTS (SELECT FROM state_stategroup g WHERE g.prev_group = ANY(%(loose)s) AND g.chain <> %(chain)s)
    OR EXISTS (
        SELECT FROM events_event e JOIN state_stategroup g ON g.id = e.state_group
        WHERE g.prev_group = ANY(%(loose)s) AND e.state_key IS NOT NULL AND e.rejected_reason IS NULL),
    (SELECT count(*) FROM state_stategroup g WHERE g.id = ANY(%(loose)s) AND g.chain = %(chain)s)
"""
_COUNT_ROWS = """
SELECT count(*) FROM state_stategroup g JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id
WHERE g.id = ANY(%s)
"""


@dataclass(slots=True)
class GroupsPurged:
    """The progress of a deletion: deleted groups, deleted rows of deltas, and rows that were moved to another group."""

    groups: int = 0
    rows: int = 0
    moved: int = 0
    left: int = 0
    """Groups that were planned, and stayed because they are needed now."""

    def __add__(self, other: GroupsPurged) -> GroupsPurged:
        return GroupsPurged(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def rooms_with_groups(using: str) -> list[str]:
    """Returns the IDs of all rooms that have state groups, sorted."""
    with connections[using].cursor() as cursor:
        cursor.execute(_ROOMS)
        return [room_id for (room_id,) in cursor.fetchall()]


def plan_groups(room_id: str, using: str, cut: int | None = None) -> GroupCollection:
    """Returns the deletion plan for a room. A group is not needed if all events that have it are below depth ``cut``."""
    with connections[using].cursor() as cursor:
        groups, needed, _ = needed_groups(cursor, room_id, cut)
    return plan_collection(groups, needed)


class GroupPurge:
    """The execution of a deletion plan for one room. ``foresee`` only counts the groups and rows to delete."""

    def __init__(self, room_id: str, using: str, plan: GroupCollection) -> None:
        self.room_id, self._using, self._plan = room_id, using, plan
        self._runs = self._worth_it(plan.runs)
        self.done = GroupsPurged()

    @property
    def total(self) -> int:
        """The number of groups to delete, including those that are merged into others."""
        return len(self._plan.deleted) + sum(len(run.absorbed) for run, _ in self._runs)

    def foresee(self) -> GroupsPurged:
        """Returns the counts that ``carry_out`` reaches if nothing changes meanwhile."""
        with connections[self._using].cursor() as cursor:
            cursor.execute(_COUNT_ROWS, [list(self._plan.deleted)])
            (rows,) = cursor.fetchone()
        counted = [counts for _, counts in self._runs]
        return GroupsPurged(self.total, rows + sum(c[0] for c in counted), sum(c[1] for c in counted))

    def carry_out(self) -> Iterator[GroupsPurged]:
        """Deletes and merges groups. Yields the progress, always the same object, after every transaction.

        Raises ``PurgeWentWrong`` if a state would read differently after a merge; that transaction is rolled back.
        """
        gone = self._plan.deleted
        for start in range(0, len(gone), _GROUPS_PER_TRANSACTION):
            with changing_room(self.room_id, self._using, LOCK_ROOM) as (cursor, _):
                self._delete(cursor, gone[start : start + _GROUPS_PER_TRANSACTION])
            yield self.done
        for run, _ in self._runs:
            before = state_digest(run.witness, self._using)
            for piece in run.pieces(_groups_at_once(before)):
                with changing_room(self.room_id, self._using, LOCK_ROOM) as (cursor, _):
                    merged = self._merge(cursor, piece, before)
                yield self.done
                if not merged:
                    break  # the parts of a run are merged in order, so the rest of it stays

    def _worth_it(self, runs: Sequence[Run]) -> list[tuple[Run, tuple[int, int]]]:
        """Returns pairs (run, (rows to delete, rows to move)).

        A run is left out if merging it moves more rows than it deletes.
        """
        found = []
        with connections[self._using].cursor() as cursor:
            for start in range(0, len(runs), _RUNS_PER_TRANSACTION):
                part = runs[start : start + _RUNS_PER_TRANSACTION]
                cursor.execute(_COUNT_RUNS, _columns(part))
                counts = {target: (dropped, moved) for target, dropped, moved in cursor.fetchall()}
                for run in part:
                    dropped, moved = counts.get(run.target, (0, 0))
                    if moved <= dropped + len(run.absorbed):
                        found.append((run, (dropped, moved)))
        return found

    def _delete(self, cursor: Any, groups: Sequence[int]) -> None:
        """Deletes the planned groups, except those that an event or another group needs by now.

        If a group G is in the plan, all groups that were built on G at planning time are in the plan, too. So a group
        outside of the plan can need G only if it was written later.
        """
        left, deleted, rows = drop_unused_groups(cursor, groups)
        self.done.left += left
        self.done.groups += deleted
        self.done.rows += rows

    def _merge(self, cursor: Any, run: Run, before: StateDigest | None) -> bool:
        """Merges one part of a run. Returns false, and changes nothing, if one of the part's groups is needed now.

        ``before`` is the digest of the state of ``Run.witness``, the nearest group above the run. If ``before`` is null,
        that group is not stored any more, and nothing is merged. Raises ``PurgeWentWrong`` if the digest differs after
        the merge.
        """
        low, high = run.bounds
        # A plans without the lock, B stores an event with a group of the run and commits, A locks the room: the run has
        # to stay.
        if before is None or self._is_needed(cursor, run):
            self.done.left += len(run.absorbed)
            return False
        names = {"chain": run.chain, "target": run.target, "first": run.absorbed[0], "last": run.absorbed[-1]}
        # Superseded rows go first: two rows of one group cannot have the same key.
        cursor.execute(_DROP_SUPERSEDED, names)
        dropped = cursor.rowcount
        cursor.execute(_MOVE_ROWS, names)
        moved = cursor.rowcount
        names |= {"low": low, "high": high, "dropped": dropped}
        if run.target == low:
            cursor.execute(_BECOME_HIGHEST, names)
            cursor.execute(_STAND_ON_TARGET, names)
        else:
            cursor.execute(_STAND_LOWER, names)
        drop_groups(cursor, run.absorbed)
        if state_digest(run.witness, self._using) != before:
            raise PurgeWentWrong(
                f"{self.room_id}: state group {run.witness} would read differently after groups {low} to {high} were merged; "
                "this was taken back. Run manage.py room check on the room."
            )
        self.done.rows += dropped
        self.done.moved += moved
        self.done.groups += len(run.absorbed)
        return True

    @staticmethod
    def _is_needed(cursor: Any, run: Run) -> bool:
        """Returns true if the groups of a run must not be merged.

        That is so in three cases: an event needs one of the groups, another chain is built on one of the groups, or one
        of the groups is no longer stored.
        """
        # A target below the run takes over the state of the highest group, so its own state must not be needed, either.
        loose = [*run.absorbed, *([run.target] if run.target < run.absorbed[0] else [])]
        cursor.execute(_LOOSE_NOW, {"loose": loose, "chain": run.chain})
        is_needed, stored = cursor.fetchone()
        return bool(is_needed) or stored != len(loose)


def _groups_at_once(state: StateDigest | None) -> int:
    """Returns the number of groups to merge in one transaction.

    Each transaction reads the state of the group above the run (``state``) to compare it. The larger this state is, the
    more groups are merged in one transaction.
    """
    part = 0 if state is None else state.entries // _PIECES_OF_A_STATE
    return max(_GROUPS_PER_TRANSACTION, min(part, _MOST_GROUPS_PER_TRANSACTION))


def _columns(runs: Sequence[Run]) -> dict[str, list[int]]:
    bounds = [run.bounds for run in runs]
    return {
        "chains": [run.chain for run in runs],
        "lows": [low for low, _ in bounds],
        "highs": [high for _, high in bounds],
        "targets": [run.target for run in runs],
    }
