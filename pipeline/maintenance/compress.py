"""``compress_state`` as a job: rewrites the state groups of some rooms, or of all, to fewer rows.

Each room is done on its own, by ``events.maintenance.group_compaction``. After each transaction the job pauses
(``pipeline.jobs.throttle``). A room that would not save enough rows is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from events.arguments import can_be_stored
from events.errors import CompressionRefused, CompressionWentWrong, PurgeRefused
from events.maintenance.group_compaction import RoomCompaction, group_rows
from events.maintenance.group_gc import rooms_with_groups
from events.maintenance.purge_history import purge_lock
from pipeline.errors import JobCancelled, PipelineError, UnusableArguments
from pipeline.jobs.arguments import ALL_ROOMS, JSON, ROOMS, Argument, Type, dry_run
from pipeline.jobs.run import Count, JobKind, JobRun
from pipeline.jobs.throttle import throttled
from state.groups.compaction import WrittenRows

__all__ = ["CompressStateKind"]

_LEAST_SAVING = 5.0
"""Default of the least share of its rows, in percent, that a room must save. Compressing rewrites rows of events."""
_MOST_LISTED = 100


class CompressStateKind(JobKind):
    """The kind of job that rewrites state groups to fewer rows."""

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
        dry_run("only say how much would be saved"),
        JSON,
    )  # fmt: skip

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Returns the summary with the rows that the rooms would save."""
        return _Rooms(run).compress()

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Rewrites room by room. The summary has the rows before and after of the rooms that shrank."""
        return _Rooms(run).compress()

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

    def judge(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises ``UnusableArguments`` for named rooms that do not exist.

        Raises ``PipelineError`` if rooms failed or were busy.
        """
        if summary["unknown"] and arguments["rooms"]:
            raise UnusableArguments(f"There is no room {', '.join(summary['unknown'][:5])}.")
        if left := len(summary["failed"]) + len(summary["busy"]):
            raise PipelineError(f"compress_state: {left} rooms were left as they are.")


class _Rooms:
    """One run of the job over its rooms. Counts what was done, or what would be done if it is a dry run."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._before = self._after = WrittenRows(0, 0)
        self._compressed = self._skipped = self._moved = 0
        self._unknown: list[str] = []
        self._failed: dict[str, str] = {}
        self._busy: list[str] = []
        self._unfinished: list[str] = []

    def compress(self) -> Mapping[str, Any]:
        """Compresses each room and returns the summary.

        Progress is counted in rooms. If there is only one room, it is counted in events.
        """
        told = self._run.arguments
        rooms = rooms_with_groups(self._run.using) if told["rooms"] is None else list(dict.fromkeys(told["rooms"]))
        if len(rooms) == 1:
            self._room(rooms[0])
        else:
            with self._run.stage("rooms", len(rooms), "rooms") as count:
                for room_id in rooms:
                    self._room(room_id, count)
                    count.add()
        self._run.note_before(_figures(self._before))
        self._run.note_after(_figures(self._after))
        return {
            "rooms": len(rooms),
            "dry_run": told["dry_run"],
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

    def _room(self, room_id: str, rooms: Count | None = None) -> None:
        using = self._run.using
        if not can_be_stored(room_id):
            self._unknown.append(room_id)
            return
        work = RoomCompaction(room_id, using)
        try:
            work.plan()
            if not work.before.groups:
                self._unknown.append(room_id)
            elif not self._is_worth_it(work):
                self._skipped += 1
            elif self._run.arguments["dry_run"]:
                self._note(work, work.foreseen, work.events)
            else:
                with purge_lock(room_id, using):
                    work.plan()  # planned again under the lock: a purge may have ended since the first plan
                    if not self._is_worth_it(work):
                        self._skipped += 1
                        return
                    self._carry_out(work, rooms)
                if not work.finished:
                    self._unfinished.append(room_id)
                self._note(work, group_rows(room_id, using), work.moved)
        except PurgeRefused:
            self._busy.append(room_id)
        except (CompressionRefused, CompressionWentWrong) as error:
            self._failed[room_id] = str(error)

    def _is_worth_it(self, work: RoomCompaction) -> bool:
        return work.saving() > 0 and work.saving() >= self._run.arguments["least_saving"]

    def _note(self, work: RoomCompaction, after: WrittenRows, moved: int) -> None:
        self._compressed += 1
        self._moved += moved
        self._before, self._after = _sum(self._before, work.before), _sum(self._after, after)

    def _carry_out(self, work: RoomCompaction, rooms: Count | None) -> None:
        try:
            if rooms is not None:
                for _ in throttled(work.carry_out()):
                    self._run.step()
                return
            with self._run.stage("events", work.events, "events") as count:
                for moved in throttled(work.carry_out()):
                    count.add(moved - count())
        except (JobCancelled, CompressionWentWrong):  # new groups that no event has yet are deleted
            for _ in work.clean_up():
                pass
            raise


def _sum(one: WrittenRows, other: WrittenRows) -> WrittenRows:
    return WrittenRows(one.groups + other.groups, one.deltas + other.deltas)


def _figures(rows: WrittenRows) -> dict[str, int]:
    return {"state_stategroup": rows.groups, "state_stategroupdelta": rows.deltas}
