"""``purge orphans``: deletes the state groups that no event needs, room by room (``events.maintenance.group_gc``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from events.errors import PurgeRefused
from events.maintenance.group_gc import GroupPurge, GroupsPurged, plan_groups, rooms_with_groups
from events.maintenance.purge_lock import purge_lock
from events.maintenance.room_arguments import SEARCHED
from events.operations.purge_history import deleted_words, left_lines, purge_groups
from streams.db.consistent_read import read_only_snapshot
from streams.jobs.arguments import JSON, YES, Argument, Type, dry_run
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation


@operation
class PurgeOrphans(Operation):
    """Deletes the state groups that nothing needs."""

    name = "purge orphans"
    help = "Delete the state groups that no event needs, of one room or of all; never stores more rows than before."
    arguments = (
        Argument(
            "room", Type.TEXT, "of this room only", typed="--room ROOM", must="the ID of a room",
            in_form="its ID; none: all rooms", attributes=SEARCHED,
        ),
        dry_run("only say how much would be deleted"),
        YES,
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "purge orphans",
            "Delete the state groups that no event needs, and merge what stands between those that stay; never stores more rows "
            "than before. Safe beside writers and readers; may be interrupted and repeated.",
            "purge orphans --dry-run",
        ),
    )

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Deletes state groups, room by room. If another job is purging a room, the room is skipped and listed as busy."""
        args = run.arguments
        rooms = [args["room"]] if args["room"] is not None else rooms_with_groups(run.using)
        done, busy = GroupsPurged(), list[str]()
        for room_id in rooms:
            try:
                if args["dry_run"]:
                    with read_only_snapshot(run.using, is_long=True):
                        purged = GroupPurge(room_id, run.using, plan_groups(room_id, run.using)).foresee()
                else:
                    with purge_lock(
                        room_id, run.using
                    ):  # restoring takes the same lock: it inserts groups before events
                        purged = purge_groups(run, room_id)
                done += purged
            except PurgeRefused:
                busy.append(room_id)
        return {
            "rooms": len(rooms),
            "dry_run": args["dry_run"],
            "state_groups_deleted": done.groups,
            "state_rows_deleted": done.rows,
            "state_groups_left": done.left,
            "busy": busy[:100],
        }

    plan = run

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield (
            f"{summary['rooms']} rooms: {summary['state_groups_deleted']} state groups and {summary['state_rows_deleted']} "
            f"of their rows {deleted_words(summary)}"
        )
        yield from left_lines(summary)
