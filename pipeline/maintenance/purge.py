"""``purge history``, ``purge orphans`` and ``purge retention`` as jobs (``pipeline.maintenance.purge_command`` are the commands).

The work is done in ``events.maintenance.purge_history`` and ``events.maintenance.group_gc``; here it is a row with progress and
figures before and after. After each transaction the job rests longer than that took (``pipeline.jobs.throttle``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from events.errors import PurgeRefused
from events.maintenance.group_gc import GroupPurge, GroupsPurged, plan_groups, rooms_with_groups
from events.maintenance.purge_history import (
    HistoryPurged,
    PurgeRequest,
    count_purged,
    foresee_history,
    only_purge,
    purge_events,
    room_figures,
)
from events.maintenance.retention import retention_cuts
from pipeline.archive.cut import CUTS, check_cut, depth_of_cut
from pipeline.archive.kind import ARCHIVE_NAMES, archive_first, check_archive
from pipeline.errors import UnusableArguments
from pipeline.jobs.fields import ARCHIVE_FIELDS, CUT_FIELDS, DELETE_LOCAL_FIELD, ROOM_FIELD, Entry, JobField
from pipeline.jobs.kinds import flag, only
from pipeline.jobs.run import JobRun
from pipeline.jobs.throttle import resting
from pipeline.maintenance.purge_words import history_words
from streams.runtime.text import printable

__all__ = [
    "HISTORY",
    "ORPHANS",
    "RETENTION",
    "PurgeHistoryKind",
    "PurgeOrphansKind",
    "PurgeRetentionKind",
    "purge_groups",
]

HISTORY, ORPHANS, RETENTION = "purge history", "purge orphans", "purge retention"


# --- history ----------------------------------------------------------------------------------------------------------


class PurgeHistoryKind:
    """Purges a room's history below an event, a time or a token."""

    help = "Delete a room's messages below an event, a time or a token, and the state groups that nothing needs then."
    fields = (ROOM_FIELD, *CUT_FIELDS, DELETE_LOCAL_FIELD, *ARCHIVE_FIELDS)

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``room``; one of ``before`` (event), ``before_time``, ``before_token``; ``delete_local``, ``dry_run``.

        ``before_time``: milliseconds, or text as ``streams.runtime.moments`` takes it.

        ``archive``: a folder, for what is going to be deleted; ``spark`` and ``master`` as in ``archive``.
        """
        only(arguments, "room", *CUTS, "delete_local", "dry_run", *ARCHIVE_NAMES)
        room = arguments.get("room")
        if not isinstance(room, str) or not room:
            raise UnusableArguments("room must be the ID of a room.")
        flags = {name: flag(arguments, name) for name in ("delete_local", "dry_run")}
        return {"room": room, **check_cut(arguments), **flags, **check_archive(arguments)}

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """The room and the cut are here."""
        depth_of_cut(arguments, using)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Events first, then state groups."""
        told, using = run.arguments, run.using
        request = PurgeRequest(told["room"], depth_of_cut(told, using) or 0, told["delete_local"], using)
        with only_purge(request.room_id, using):
            before = room_figures(request.room_id, using)
            run.note_before(before)
            archived: dict[str, Any] = {}
            if told["archive"] is not None and not told["dry_run"]:
                count_purged(request)  # a purge that is refused writes no archive
                request, archived = archive_first(run, request)
            purge = _foresee if told["dry_run"] else _carry_out
            events, groups, after = purge(run, request, before)
            run.note_after(after)
        folder = archived["archive"]["folder"] if archived else None
        words = history_words(told, events.deleted, events.became_outliers, folder)
        run.say(f"{printable(request.room_id)}: {words}")
        return {
            "room_id": request.room_id,
            "words": words,
            "cut": request.cut,
            "dry_run": told["dry_run"],
            "deleted": events.deleted,
            "became_outliers": events.became_outliers,
            "leaves_removed": events.leaves,
            "state_groups_deleted": groups.groups,
            "state_rows_deleted": groups.rows,
            "state_groups_left": groups.left,
            "tables": {table: [count, after[table]] for table, count in before.items()},
            **archived,
        }


Outcome = tuple[HistoryPurged, GroupsPurged, Mapping[str, int]]


def _foresee(run: JobRun, request: PurgeRequest, before: Mapping[str, int]) -> Outcome:
    events, changed = foresee_history(request)
    groups = GroupPurge(request.room_id, run.using, plan_groups(request.room_id, run.using, request.cut)).foresee()
    return events, groups, {**before, **changed, **_groups_after(before, groups)}


def _carry_out(run: JobRun, request: PurgeRequest, before: Mapping[str, int]) -> Outcome:
    events = HistoryPurged()
    with run.stage("events", count_purged(request), "events") as count:
        for events in resting(purge_events(request)):
            count.add(events.deleted + events.became_outliers - count())
    groups = purge_groups(run, [request.room_id])
    return events, groups, room_figures(request.room_id, run.using)


def purge_groups(run: JobRun, room_ids: Iterable[str]) -> GroupsPurged:
    """Delete the state groups of rooms that nothing needs."""
    total = GroupsPurged()
    for room_id in room_ids:
        purge = GroupPurge(room_id, run.using, plan_groups(room_id, run.using))
        with run.stage("state groups", purge.total, "groups") as count:
            for done in resting(purge.carry_out()):
                count.add(done.groups - count())
        _add(total, purge.done)
    return total


def _add(total: GroupsPurged, one: GroupsPurged) -> None:
    total.groups += one.groups
    total.rows += one.rows
    total.left += one.left


def _groups_after(before: Mapping[str, int], groups: GroupsPurged) -> dict[str, int]:
    return {
        "state_stategroup": before["state_stategroup"] - groups.groups,
        "state_stategroupdelta": before["state_stategroupdelta"] - groups.rows,
    }


# --- orphans ----------------------------------------------------------------------------------------------------------


class PurgeOrphansKind:
    """Deletes state groups that nothing needs."""

    help = "Delete the state groups that no event needs, of one room or of all; never stores more rows than before."
    fields = (JobField("room", Entry.TEXT, "its ID; none: all rooms"),)

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``room``: this one only; ``dry_run``: only count."""
        only(arguments, "room", "dry_run")
        room = arguments.get("room")
        if room is not None and not isinstance(room, str):
            raise UnusableArguments("room must be the ID of a room.")
        return {"room": room, "dry_run": flag(arguments, "dry_run")}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Room by room."""
        told, using = run.arguments, run.using
        rooms = [told["room"]] if told["room"] is not None else rooms_with_groups(using)
        done, busy = GroupsPurged(), list[str]()
        for room_id in rooms:
            if told["dry_run"]:
                _add(done, GroupPurge(room_id, using, plan_groups(room_id, using)).foresee())
                continue
            try:
                with only_purge(room_id, using):  # an archive that is going back in has groups that no event has yet
                    _add(done, purge_groups(run, [room_id]))
            except PurgeRefused:
                busy.append(room_id)
        return {
            "rooms": len(rooms),
            "dry_run": told["dry_run"],
            "state_groups_deleted": done.groups,
            "state_rows_deleted": done.rows,
            "state_groups_left": done.left,
            "busy": busy[:100],
        }


# --- retention --------------------------------------------------------------------------------------------------------


class PurgeRetentionKind:
    """Purges what rooms have kept for long enough."""

    help = "Delete the messages that rooms have kept for long enough, by m.room.retention and the site's settings."
    fields = ARCHIVE_FIELDS

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``dry_run``: only count; ``archive``: a folder for what is going to be deleted; ``spark`` and ``master`` for that."""
        only(arguments, "dry_run", *ARCHIVE_NAMES)
        return {"dry_run": flag(arguments, "dry_run"), **check_archive(arguments)}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Room by room; one that is being purged already is left for the next time."""
        dry, rooms, busy = run.arguments["dry_run"], 0, list[str]()
        deleted = outliers = groups = 0
        for room_id, cut in retention_cuts(time.time_ns() // 1_000_000, run.using):
            request = PurgeRequest(room_id, cut, delete_local=True, using=run.using)
            try:
                with only_purge(room_id, run.using):
                    if run.arguments["archive"] is not None and not dry and count_purged(request):
                        request, _ = archive_first(run, request)
                    events, gone, _ = (_foresee if dry else _carry_out)(run, request, room_figures(room_id, run.using))
            except PurgeRefused:
                busy.append(room_id)
                continue
            rooms += bool(events.deleted or events.became_outliers)
            deleted, outliers, groups = (
                deleted + events.deleted,
                outliers + events.became_outliers,
                groups + gone.groups,
            )
        return {
            "rooms": rooms,
            "dry_run": dry,
            "deleted": deleted,
            "became_outliers": outliers,
            "state_groups_deleted": groups,
            "busy": busy[:100],
        }
