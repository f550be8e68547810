"""``room compress``: rewrites the state groups of rooms so that they take fewer rows.

First the job plans the new state groups of each room, on Spark if there are many state groups. A room is not changed if
too few rows would be saved. ``events.maintenance.group_compaction`` rewrites the other rooms, one at a time. After each
transaction the job pauses (``streams.jobs.throttle``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections

from events.arguments import can_be_stored
from events.errors import CompressionRefused, CompressionWentWrong, PurgeRefused
from events.maintenance.group_compaction import RoomCompaction, group_rows, plan_here
from events.maintenance.group_plan import PlannedRoom
from events.maintenance.purge_lock import purge_lock
from events.maintenance.room_arguments import ALL_ROOMS, ROOMS
from pipeline.errors import PipelineError
from pipeline.maintenance.compress_executor import plan_rooms
from pipeline.maintenance.room_tasks import MASTER, SizedRoom, are_many, ask_rooms
from pipeline.spark.site_session import session_if_worth_it
from state.groups.compaction import WrittenRows
from streams.db.driver import dsn
from streams.jobs.arguments import JSON, Argument, Type, dry_run
from streams.jobs.errors import JobCancelled, UnusableArguments
from streams.jobs.job_run import Count, JobRun
from streams.jobs.operation import Operation, Words, operation
from streams.jobs.throttle import throttled

__all__ = ["GROUPS_IN_PROCESS", "CompressState"]

GROUPS_IN_PROCESS = 150_000
"""The largest number of state groups that are planned without Spark. To start Spark takes as long as to plan so many."""
_GROUPS_PER_TASK = 10_000

_LEAST_SAVING = 5.0
"""Default for the percentage of its rows that a room must save to be rewritten. Rewriting also updates rows of events."""
_MOST_LISTED = 100
_SIZES = """
SELECT room_id, count(*) FROM state_stategroup WHERE %(rooms)s::text[] IS NULL OR room_id = ANY(%(rooms)s::text[])
GROUP BY room_id ORDER BY room_id
"""


@operation
class CompressState(Operation):
    name = "compress state"
    help = (
        "Rewrite the state groups of rooms to as few rows as they need; rooms that would not shrink stay as they are."
    )
    arguments = (
        ROOMS,
        ALL_ROOMS,
        Argument(
            "least_saving", Type.NUMBER, f"leave rooms that would save less of their rows (default: {_LEAST_SAVING:g})",
            typed="--least-saving PERCENT", bounds=(0, 100), default=_LEAST_SAVING,
            in_form="percent of a room's rows; rooms that would save less stay as they are",
        ),
        MASTER,
        dry_run("only say how much would be saved"),
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "room compress",
            "Rewrite the state groups of rooms to as few rows as they need. Safe beside writers and readers; may be interrupted "
            "and repeated; rooms that would not shrink stay as they are.",
            "room compress --all --dry-run",
        ),
    )

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Rewrites the state groups, room by room.

        Returns the summary. Its entry ``rows`` has two numbers for all rewritten rooms together: the rows of their
        state groups before the job and after it.
        """
        return _Rooms(run).compress()

    plan = run

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        verb = "would shrink" if summary["dry_run"] else "shrank"
        before, after = summary["rows"]
        yield (
            f"{summary['compressed']} of {summary['rooms']} rooms {verb}: {before:,} -> {after:,} rows; "
            f"{summary['skipped']} would not shrink enough"
        )
        for room_id in summary["busy"]:
            yield f"{room_id} is being purged, or compressed, already; left as it is"
        for room_id in summary["unfinished"]:
            yield f"{room_id}: events came to use old state groups meanwhile, which stay; run it again when less is stored"
        yield from summary["failed"].values()

    def check_outcome(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises ``UnusableArguments`` if rooms that the arguments name do not exist.

        Raises ``PipelineError`` if the compression of a room failed, or if another job was working on a room.
        """
        if summary["unknown"] and arguments["rooms"]:
            raise UnusableArguments(f"There is no room {', '.join(summary['unknown'][:5])}.")
        if left := len(summary["failed"]) + len(summary["busy"]):
            raise PipelineError(f"compress_state: {left} rooms were left as they are.")


class _Rooms:
    """One run of the job over its rooms. Counts the rows that the run saves. In a dry run, counts the rows that it would save."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._before = self._after = WrittenRows(0, 0)
        self._compressed = self._skipped = self._moved = 0
        self._unknown: list[str] = []
        self._failed: dict[str, str] = {}
        self._busy: list[str] = []
        self._unfinished: list[str] = []

    def compress(self) -> Mapping[str, Any]:
        """Compresses each room, unless it is a dry run. Returns the summary.

        Progress is counted in rooms. If there is only one room, progress is counted in events.
        """
        given = self._run.arguments
        rooms = self._sized(given["rooms"])
        if len(rooms) == 1:
            for planned in self._planned(rooms):
                self._room(planned)
        else:
            with self._run.stage("rooms", len(rooms), "rooms") as count:
                for planned in self._planned(rooms):
                    self._room(planned, count)
                    count.add()
        self._run.store_before(_figures(self._before))
        self._run.store_after(_figures(self._after))
        return {
            "rooms": len(rooms),
            "dry_run": given["dry_run"],
            "compressed": self._compressed,
            "skipped": self._skipped,
            "rows": [self._before.total, self._after.total],
            "state_groups": [self._before.groups, self._after.groups],
            "events_moved": self._moved,
            "unknown": self._unknown[:_MOST_LISTED],
            "busy": self._busy[:_MOST_LISTED],
            "unfinished": self._unfinished[:_MOST_LISTED],
            "failed": dict(list(self._failed.items())[:_MOST_LISTED]),
        }

    def _sized(self, names: Sequence[str] | None) -> list[SizedRoom]:
        """Returns the named rooms, each with its number of state groups.

        If ``names`` is None, returns all rooms that have state groups.
        """
        storable = None if names is None else [name for name in dict.fromkeys(names) if can_be_stored(name)]
        with connections[self._run.using].cursor() as cursor:
            cursor.execute(_SIZES, {"rooms": storable})
            sizes = dict(cursor.fetchall())
        wanted = sizes if names is None else dict.fromkeys(names)
        return [SizedRoom(name, sizes.get(name, 0)) for name in wanted]

    def _planned(self, rooms: Sequence[SizedRoom]) -> Iterator[PlannedRoom]:
        """Plans each room, in this process or on Spark. Yields the plans. The plan of a room without state groups is empty."""
        using, master = self._run.using, self._run.arguments.get("master")
        grouped = [room for room in rooms if room.size]
        yield from (PlannedRoom(room.room_id) for room in rooms if not room.size)
        worth_it = are_many(grouped, GROUPS_IN_PROCESS)
        with session_if_worth_it(self._run, "compress", master, worth_it=worth_it) as spark:
            if spark is None:
                for room in grouped:
                    yield plan_here(room.room_id, using)
                return
            for _, planned in ask_rooms(self._run, spark, grouped, _GROUPS_PER_TASK, partial(plan_rooms, dsn(using))):
                yield from planned

    def _room(self, planned: PlannedRoom, rooms: Count | None = None) -> None:
        room_id, using = planned.room_id, self._run.using
        try:
            if planned.refused is not None:
                self._failed[room_id] = planned.refused
            elif not planned.before.groups:
                self._unknown.append(room_id)
            elif not self._is_worth_it(planned):
                self._skipped += 1
            elif self._run.arguments["dry_run"]:
                self._count_compressed(planned, planned.foreseen, planned.events)
            else:
                with purge_lock(room_id, using):
                    work = RoomCompaction(room_id, using)
                    # Planned again under the lock: a purge may have ended since, and the first plan may be another process's.
                    if not self._is_worth_it(work.plan()):
                        self._skipped += 1
                        return
                    self._carry_out(work, rooms)
                if not work.finished:
                    self._unfinished.append(room_id)
                self._count_compressed(work.planned, group_rows(room_id, using), work.moved)
        except PurgeRefused:
            self._busy.append(room_id)
        except (CompressionRefused, CompressionWentWrong) as error:
            self._failed[room_id] = str(error)

    def _is_worth_it(self, planned: PlannedRoom) -> bool:
        return planned.saving > 0 and planned.saving >= self._run.arguments["least_saving"]

    def _count_compressed(self, planned: PlannedRoom, after: WrittenRows, moved: int) -> None:
        self._compressed += 1
        self._moved += moved
        self._before, self._after = _sum(self._before, planned.before), _sum(self._after, after)

    def _carry_out(self, work: RoomCompaction, rooms: Count | None) -> None:
        try:
            if rooms is not None:
                for _ in throttled(work.carry_out()):
                    self._run.step()
                return
            with self._run.stage("events", work.planned.events, "events") as count:
                for moved in throttled(work.carry_out()):
                    count.add(moved - count())
        except (JobCancelled, CompressionWentWrong):  # new groups that no event has yet are deleted
            for _ in work.clean_up():
                pass
            raise


def _sum(rows: WrittenRows, more: WrittenRows) -> WrittenRows:
    return WrittenRows(rows.groups + more.groups, rows.deltas + more.deltas)


def _figures(rows: WrittenRows) -> dict[str, int]:
    return {"state_stategroup": rows.groups, "state_stategroupdelta": rows.deltas}
