"""Implements the jobs ``purge history``, ``purge orphans`` and ``purge retention``.

``events.maintenance.purge_history`` and ``events.maintenance.group_gc`` do the work. This module adds progress, and figures
before and after. After each transaction the job pauses (``streams.jobs.throttle``). The commands are in
``pipeline.maintenance.subjects``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from events.errors import EventUnreadable, PurgeRefused
from events.maintenance.group_gc import GroupPurge, GroupsPurged, plan_groups, rooms_with_groups
from events.maintenance.purge_history import (
    HistoryPurged,
    PurgeRequest,
    count_purged,
    foresee_history,
    purge_events,
    purge_lock,
    room_figures,
)
from events.maintenance.retention import retention_cuts
from events.operations.room_arguments import ROOM, SEARCHED
from pipeline.archive.cut import check_cut, cut_arguments, depth_of_cut
from pipeline.archive.kind import ARCHIVE, archive_first, check_archive
from pipeline.maintenance.purge_words import history_words
from streams.db.consistent_read import read_only_snapshot
from streams.jobs.arguments import JSON, YES, Argument, Type, dry_run
from streams.jobs.run import JobKind, JobRun
from streams.jobs.throttle import throttled
from streams.runtime.text import safe_text

__all__ = ["PurgeHistoryKind", "PurgeOrphansKind", "PurgeRetentionKind", "purge_groups", "table_lines"]


# --- history ----------------------------------------------------------------------------------------------------------


class PurgeHistoryKind(JobKind):
    """The kind of job that purges a room's history below an event, a time or a token."""

    name = "purge history"
    help = "Delete a room's messages below an event, a time or a token, and the state groups that nothing needs then."
    arguments = (
        ROOM,
        *cut_arguments(required=True),
        Argument("delete_local", Type.FLAG, "messages of this server go, too"),
        *ARCHIVE,
        dry_run("only say what would be deleted"),
        YES,
        JSON,
    )

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` unless exactly one of the arguments for event, time and token is given.

        Also raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive.
        """
        check_cut(checked)
        check_archive(checked)

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Raises ``UnknownRoom``, ``UnknownEvent`` or ``BadToken`` if the database does not have the room, event or token."""
        depth_of_cut(arguments, using)

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run. Returns the summary, which says what would be deleted."""
        return self._purge(run, _foresee)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Writes an archive if the arguments name a folder for it. Then deletes events and unneeded state groups."""
        return self._purge(run, _carry_out)

    def _purge(self, run: JobRun, purge: Purge) -> Mapping[str, Any]:
        told, using = run.arguments, run.using
        request = PurgeRequest(told["room"], depth_of_cut(told, using) or 0, told["delete_local"], using)
        with purge_lock(request.room_id, using):
            before, after, events, groups, archived = purge(run, request, run.note_before)
            run.note_after(after)
        folder = archived["archive"]["folder"] if archived else None
        words = history_words(told, events.deleted, events.became_outliers, folder)
        run.say(f"{safe_text(request.room_id, None)}: {words}")
        return {
            "room_id": request.room_id,
            "words": words,
            "cut": request.cut,
            "dry_run": told["dry_run"],
            "deleted": events.deleted,
            "became_outliers": events.became_outliers,
            "leaves_removed": events.extremities,
            "state_groups_deleted": groups.groups,
            "state_rows_deleted": groups.rows,
            "state_groups_left": groups.left,
            "tables": {table: [count, after[table]] for table, count in before.items()},
            **archived,
        }

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield from table_lines(summary)
        yield from _left(summary)


def table_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines of text about the purge of one room.

    The lines have a sentence about the purge, the archive, and the number of rows of each table before and after.
    """
    yield f"{safe_text(summary['room_id'], None)}: {summary['words']}"
    if "archive" in summary:
        yield f"archived in {summary['archive']['folder']}: {summary['archive']['events']} events"
    for table, (before, after) in summary["tables"].items():
        yield f"{table}: {before} -> {after} rows"


def _left(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary["state_groups_left"]:
        yield f"{summary['state_groups_left']} state groups came into use meanwhile and stay"


def _verb(summary: Mapping[str, Any]) -> str:
    return "would be deleted" if summary["dry_run"] else "deleted"


Figures = Mapping[str, int]
Outcome = tuple[Figures, Figures, HistoryPurged, GroupsPurged, dict[str, Any]]
"""The figures before and after, the counts of purged events and of purged state groups, the archive's part of the summary."""
Purge = Callable[[JobRun, PurgeRequest, Callable[[Figures], None]], Outcome]
"""A function that purges one room, or does the dry run. It passes the figures before the work to its last argument."""


def _foresee(run: JobRun, request: PurgeRequest, note_before: Callable[[Figures], None]) -> Outcome:
    # All figures are of one snapshot. Without it: the room's events are counted, A stores an event, then the events to purge are
    # counted, and the difference, the number of events that are left, is wrong.
    with read_only_snapshot(run.using, is_long=True):
        before = room_figures(request.room_id, run.using)
        events, changed = foresee_history(request)
        groups = GroupPurge(request.room_id, run.using, plan_groups(request.room_id, run.using, request.cut)).foresee()
    note_before(before)
    return before, {**before, **changed, **_groups_after(before, groups)}, events, groups, {}


def _carry_out(
    run: JobRun, request: PurgeRequest, note_before: Callable[[Figures], None], *, archives_nothing: bool = True
) -> Outcome:
    before = room_figures(request.room_id, run.using)
    note_before(before)
    events, archived = HistoryPurged(), dict[str, Any]()
    to_purge = count_purged(request)  # before the archive: if the purge is refused, none is written
    if run.arguments["archive"] is not None and (to_purge or archives_nothing):
        # The request is limited to the archived positions, so the count is made again: events may have arrived meanwhile.
        request, archived = archive_first(run, request)
        to_purge = count_purged(request)
    with run.stage("events", to_purge, "events") as count:
        for events in throttled(purge_events(request)):
            count.add(events.deleted + events.became_outliers - count())
    groups = purge_groups(run, [request.room_id])
    return before, room_figures(request.room_id, run.using), events, groups, archived


def purge_groups(run: JobRun, room_ids: Iterable[str]) -> GroupsPurged:
    """Deletes the state groups of the rooms ``room_ids`` that nothing needs. Returns the totals over all rooms."""
    total = GroupsPurged()
    for room_id in room_ids:
        purge = GroupPurge(room_id, run.using, plan_groups(room_id, run.using))
        with run.stage("state groups", purge.total, "groups") as count:
            for done in throttled(purge.carry_out()):
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


class PurgeOrphansKind(JobKind):
    """The kind of job that deletes the state groups that nothing needs."""

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

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run. Returns the summary, which says what would be deleted."""

        def foresee(room_id: str) -> GroupsPurged:
            with read_only_snapshot(run.using, is_long=True):
                return GroupPurge(room_id, run.using, plan_groups(room_id, run.using)).foresee()

        return self._purge(run, foresee)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Deletes state groups, room by room. If another job is purging a room, the room is skipped and listed as busy."""

        def purge(room_id: str) -> GroupsPurged:
            # Restoring an archive takes the same lock: it inserts groups first and their events later.
            with purge_lock(room_id, run.using):
                return purge_groups(run, [room_id])

        return self._purge(run, purge)

    def _purge(self, run: JobRun, purge: Callable[[str], GroupsPurged]) -> Mapping[str, Any]:
        told = run.arguments
        rooms = [told["room"]] if told["room"] is not None else rooms_with_groups(run.using)
        done, busy = GroupsPurged(), list[str]()
        for room_id in rooms:
            try:
                _add(done, purge(room_id))
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

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield (
            f"{summary['rooms']} rooms: {summary['state_groups_deleted']} state groups and {summary['state_rows_deleted']} "
            f"of their rows {_verb(summary)}"
        )
        yield from _left(summary)


# --- retention --------------------------------------------------------------------------------------------------------


class PurgeRetentionKind(JobKind):
    """The kind of job that purges messages that are older than their room's retention time."""

    name = "purge retention"
    help = "Delete the messages that rooms have kept for long enough, by m.room.retention and the site's settings."
    arguments = (*ARCHIVE, dry_run("only say how much would be deleted"), YES, JSON)

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive."""
        check_archive(checked)

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run. Returns the summary, which says what would be deleted."""
        return self._purge(run, _foresee)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Purges room by room. If another job is purging a room, the room is left for the next run and listed as busy."""
        return self._purge(run, partial(_carry_out, archives_nothing=False))

    def _purge(self, run: JobRun, purge: Purge) -> Mapping[str, Any]:
        rooms, busy, left = 0, list[str](), list[dict[str, Any]]()
        deleted = outliers = groups = 0
        for cut in retention_cuts(time.time_ns() // 1_000_000, run.using):
            if cut.why:
                left.append({"room_id": cut.room_id, "events": cut.left, "why": cut.why})
            if cut.depth <= 0:
                continue
            request = PurgeRequest(cut.room_id, cut.depth, delete_local=True, using=run.using)
            try:
                with purge_lock(cut.room_id, run.using):
                    _, _, events, gone, _ = purge(run, request, lambda _: None)
            except PurgeRefused:
                busy.append(cut.room_id)
                continue
            except EventUnreadable as error:
                left.append({"room_id": cut.room_id, "events": None, "why": str(error)})
                continue
            rooms += bool(events.deleted or events.became_outliers)
            deleted += events.deleted
            outliers += events.became_outliers
            groups += gone.groups
        return {
            "rooms": rooms,
            "dry_run": run.arguments["dry_run"],
            "deleted": deleted,
            "became_outliers": outliers,
            "state_groups_deleted": groups,
            "busy": busy[:100],
            "left": left[:100],
            "rooms_left": len(left),
        }

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        verb = _verb(summary)
        yield (
            f"{summary['rooms']} rooms: {summary['deleted']} events {verb}, {summary['became_outliers']} kept as outliers, "
            f"{summary['state_groups_deleted']} state groups {verb}"
        )
        for room_id in summary["busy"]:
            yield f"{room_id} is being purged already, or may not be cut; left as it is"
        for room in summary["left"]:
            events = "what has expired" if room["events"] is None else f"{room['events']} expired messages"
            yield f"{room['room_id']}: {events} stay: {room['why']}"
        if (more := summary["rooms_left"] - len(summary["left"])) > 0:
            yield f"{more} more rooms keep expired messages"
