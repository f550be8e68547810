"""``purge history``: deletes a room's messages below a depth (the *cut*), while the room is read and written.

Messages are deleted. State events stay as outliers, because event auth and states need them. Messages of this server
stay as outliers, too, unless the request includes them. Events at exactly the given depth (the *cut*) stay in the
graph.

Events go from the lowest depth up, some thousand in each transaction. Each transaction locks the room's row first, as
every write to a room does, and notifies other processes by ``Room.content_generation`` and on the stream ``caches``.
After each transaction, the room looks like a room whose history begins a little higher. The missing prev events are
backward extremities, so backfill may fetch them again, and a sync across them has a limited timeline. So a purge may be
stopped after any transaction and run again.

Then the state groups go that no event needs any more (``events.maintenance.group_gc``). After each transaction the job
pauses (``throttled``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from django.db import connections, transaction

from events.maintenance.archiving import archive_words, archiver
from events.maintenance.cut import check_cut, cut_arguments, depth_of_cut
from events.maintenance.group_gc import GroupPurge, GroupsPurged, plan_groups
from events.maintenance.purge_batch import (
    GOES,
    LOWEST,
    PURGED,
    HistoryPurged,
    PurgeRequest,
    check_forward_extremities,
    purge_batch,
)
from events.maintenance.purge_lock import purge_lock
from events.maintenance.room_arguments import ROOM
from streams.db.consistent_read import read_only_snapshot
from streams.jobs.arguments import JSON, YES, Argument, Type, dry_run
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation
from streams.jobs.throttle import throttled
from streams.runtime.moments import moment_text
from streams.runtime.text import safe_text

_EVENTS_PER_TRANSACTION = 2_000
#: Counting a large room may take long, so it uses no parallel workers.
_ON_ONE_CORE = "SET LOCAL max_parallel_workers_per_gather = 0"
#: Table -> the ``FROM`` clause of a room's rows in it.
_FIGURES: Mapping[str, str] = {
    "events_event": "FROM events_event WHERE room_id = %(room)s",
    "events_eventjson": "FROM events_eventjson JOIN events_event e USING (event_id) WHERE e.room_id = %(room)s",
    "events_eventauth": "FROM events_eventauth JOIN events_event e USING (event_id) WHERE e.room_id = %(room)s",
    "events_eventedge": "FROM events_eventedge JOIN events_event e USING (event_id) WHERE e.room_id = %(room)s",
    "events_forwardextremity": "FROM events_forwardextremity WHERE room_id = %(room)s",
    "events_backwardextremity": "FROM events_backwardextremity WHERE room_id = %(room)s",
    "events_timelinegap": "FROM events_timelinegap WHERE room_id = %(room)s",
    "state_stategroup": "FROM state_stategroup WHERE room_id = %(room)s",
    "state_stategroupdelta": (
        "FROM state_stategroup g JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id "
        "WHERE g.room_id = %(room)s"
    ),
}
_COUNT = f"SELECT count(*) FROM events_event e WHERE {PURGED}"
_FORESEE = f"""
WITH purged AS MATERIALIZED (
    SELECT e.event_id, e.stream_ordering, e.outlier, {GOES} AS goes FROM events_event e WHERE {PURGED}
), above AS MATERIALIZED (
    SELECT edge.prev_event_id, e.stream_ordering FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE e.room_id = %(room)s AND NOT e.outlier AND e.event_id NOT IN (SELECT event_id FROM purged)
), holes AS (
    SELECT stream_ordering FROM events_timelinegap
    WHERE room_id = %(room)s AND stream_ordering NOT IN (SELECT stream_ordering FROM purged)
    UNION
    SELECT above.stream_ordering FROM above JOIN purged ON purged.event_id = above.prev_event_id WHERE above.stream_ordering > 0
), gaps AS (
    SELECT gap.event_id FROM events_backwardextremity gap WHERE gap.room_id = %(room)s AND (
        gap.event_id IN (SELECT prev_event_id FROM above)
        OR gap.event_id NOT IN (
            SELECT edge.prev_event_id FROM events_eventedge edge WHERE edge.event_id IN (SELECT event_id FROM purged)))
    UNION
    SELECT above.prev_event_id FROM above JOIN purged ON purged.event_id = above.prev_event_id
)
SELECT (SELECT count(*) FILTER (WHERE goes) FROM purged), (SELECT count(*) FILTER (WHERE NOT goes) FROM purged),
    (SELECT count(*) FROM events_eventedge WHERE event_id IN (SELECT event_id FROM purged)),
    (SELECT count(*) FROM events_forwardextremity WHERE event_id IN (SELECT event_id FROM purged)),
    (SELECT count(*) FROM gaps), (SELECT count(*) FROM holes)
"""


@operation
class PurgeHistory(Operation):
    """Purges a room's history below an event, a time or a token."""

    name = "purge history"
    help = "Delete a room's messages below an event, a time or a token, and the state groups that nothing needs then."
    arguments = (
        ROOM,
        *cut_arguments(required=True),
        Argument("delete_local", Type.FLAG, "messages of this server go, too"),
        *archiver().arguments,
        dry_run("only say what would be deleted"),
        YES,
        JSON,
    )
    commands = (
        Words(
            "purge history",
            "Delete a room's messages below an event, a time or a token; state events stay as outliers, and messages of this "
            "server unless --delete-local is given. Then state groups that nothing needs go. Safe beside writers and readers; "
            "may be interrupted and repeated.",
            "purge history '!room:site' --before-time 30d --dry-run",
        ),
    )

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` unless exactly one of the arguments for event, time and token is given.

        Also raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive.
        """
        check_cut(checked)
        archiver().check(checked)

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Raises ``UnknownRoom``, ``UnknownEvent`` or ``BadToken`` if the database does not have the room, event or token."""
        depth_of_cut(arguments, using)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Writes an archive if the arguments name a folder for it. Then deletes events and unneeded state groups."""
        args, using = run.arguments, run.using
        purge: Purge = foresee if args["dry_run"] else carry_out
        request = PurgeRequest(args["room"], depth_of_cut(args, using) or 0, args["delete_local"], using)
        with purge_lock(request.room_id, using):
            before, after, events, groups, archived = purge(run, request, run.store_before)
            run.store_after(after)
        words = history_words(args, events.deleted, events.became_outliers, archived.get("archive", {}).get("folder"))
        run.say(f"{safe_text(request.room_id, None)}: {words}")
        return {
            "room_id": request.room_id,
            "words": words,
            "cut": request.cut,
            "dry_run": args["dry_run"],
            "deleted": events.deleted,
            "became_outliers": events.became_outliers,
            "leaves_removed": events.extremities,
            "state_groups_deleted": groups.groups,
            "state_rows_deleted": groups.rows,
            "state_groups_left": groups.left,
            "tables": {table: [count, after[table]] for table, count in before.items()},
            **archived,
        }

    plan = run

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield from table_lines(summary)
        yield from left_lines(summary)


def table_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines of text about the purge of one room.

    The lines have a sentence about the purge, the archive, and the number of rows of each table before and after.
    """
    yield f"{safe_text(summary['room_id'], None)}: {summary['words']}"
    if "archive" in summary:
        yield f"archived in {summary['archive']['folder']}: {summary['archive']['events']} events"
    for table, (before, after) in summary["tables"].items():
        yield f"{table}: {before} -> {after} rows"


def deleted_words(args: Mapping[str, Any]) -> str:
    """Returns ``deleted``, or ``would be deleted`` for a dry run. ``args`` are a job's arguments or its summary."""
    return "would be deleted" if args["dry_run"] else "deleted"


def left_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line if state groups stay that nothing needed when the work began."""
    if summary["state_groups_left"]:
        yield f"{summary['state_groups_left']} state groups came into use meanwhile and stay"


def scope_words(args: Mapping[str, Any]) -> str:
    """Returns a text that says which messages are purged, such as ``messages before 22 Nov 2026 02:00 UTC``."""
    if "before_time" in args:
        which = f"before {moment_text(args['before_time'])}"
    elif "before" in args:
        which = f"below event {safe_text(args['before'], None)}"
    else:
        which = f"below token {safe_text(args['before_token'], None)}"
    return f"messages {which}{', those of this server too' if args['delete_local'] else ''}"


def history_words(args: Mapping[str, Any], deleted: int, outliers: int, folder: str | None = None) -> str:
    """Returns the sentence that describes a purge of history, for the page that confirms it, the log and the terminal.

    For example ``messages before 22 Nov 2026 02:00 UTC: 1,833 deleted, 4,819 kept as outliers; no archive``.
    """
    return f"{scope_words(args)}: {deleted:,} {deleted_words(args)}, {outliers:,} kept as outliers; {archive_words(args, folder)}"


# --- the work ---------------------------------------------------------------------------------------------------------


Figures = Mapping[str, int]
Outcome = tuple[Figures, Figures, HistoryPurged, GroupsPurged, dict[str, Any]]
"""The figures before and after, the counts of purged events and of purged state groups, the archive's part of the summary."""
Purge = Callable[[JobRun, PurgeRequest, Callable[[Figures], None]], Outcome]


def foresee(run: JobRun, request: PurgeRequest, store_before: Callable[[Figures], None]) -> Outcome:
    """Counts what would go."""
    # All figures are of one snapshot. Without it: the room's events are counted, A stores an event, then the events to purge are
    # counted, and the difference, the number of events that are left, is wrong.
    with read_only_snapshot(run.using, is_long=True):
        before = room_figures(request.room_id, run.using)
        events, changed = foresee_history(request)
        groups = GroupPurge(request.room_id, run.using, plan_groups(request.room_id, run.using, request.cut)).foresee()
    store_before(before)
    kept = {
        "state_stategroup": before["state_stategroup"] - groups.groups,
        "state_stategroupdelta": before["state_stategroupdelta"] - groups.rows,
    }
    return before, {**before, **changed, **kept}, events, groups, {}


def carry_out(
    run: JobRun, request: PurgeRequest, store_before: Callable[[Figures], None], *, archives_nothing: bool = True
) -> Outcome:
    """Writes the archive, if the arguments name a folder, then deletes. ``archives_nothing``: also if nothing is to go."""
    before = room_figures(request.room_id, run.using)
    store_before(before)
    events, archived = HistoryPurged(), dict[str, Any]()
    to_purge = count_purged(request)  # before the archive: if the purge is refused, none is written
    if run.arguments["archive"] is not None and (to_purge or archives_nothing):
        # The request is limited to the archived positions, so the count is made again: events may have arrived meanwhile.
        written = archiver().write(run, request.room_id, request.cut, delete_local=request.delete_local)
        request, archived = replace(request, positions=written.positions), {"archive": written.figures}
        to_purge = count_purged(request)
    with run.stage("events", to_purge, "events") as count:
        for events in throttled(purge_events(request)):
            count.add(events.deleted + events.became_outliers - count())
    groups = purge_groups(run, request.room_id)
    return before, room_figures(request.room_id, run.using), events, groups, archived


def purge_groups(run: JobRun, room_id: str) -> GroupsPurged:
    """Deletes the state groups of a room that nothing needs."""
    purge = GroupPurge(room_id, run.using, plan_groups(room_id, run.using))
    with run.stage("state groups", purge.total, "groups") as count:
        for done in throttled(purge.carry_out()):
            count.add(done.groups - count())
    return purge.done


# --- the events -------------------------------------------------------------------------------------------------------


def foresee_history(request: PurgeRequest) -> tuple[HistoryPurged, dict[str, int]]:
    """Returns (counts of what a purge would delete, number of rows by table after the purge). Leaves out state groups.

    Raises ``PurgeRefused``.
    """
    with connections[request.using].cursor() as cursor:
        check_forward_extremities(cursor, request)
        cursor.execute(_FORESEE, request.names)
        deleted, outliers, edges, extremities, gaps, holes = cursor.fetchone()
    now = room_figures(request.room_id, request.using)
    deleted_rows = {
        "events_event": deleted,
        "events_eventjson": deleted,
        "events_eventedge": edges,
        "events_forwardextremity": extremities,
    }
    after = {table: now[table] - count for table, count in deleted_rows.items()}
    return HistoryPurged(deleted, outliers, extremities), after | {
        "events_backwardextremity": gaps,
        "events_timelinegap": holes,
    }


def count_purged(request: PurgeRequest) -> int:
    """Returns the number of events that a purge would delete or make outliers. Raises ``PurgeRefused``."""
    with connections[request.using].cursor() as cursor:
        check_forward_extremities(cursor, request)
        cursor.execute(_COUNT, request.names)
        return int(cursor.fetchone()[0])


def room_figures(room_id: str, using: str) -> dict[str, int]:
    """Returns the number of rows of a room by table, counted in one snapshot."""
    columns = ", ".join(f"(SELECT count(*) {source})" for source in _FIGURES.values())
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_ON_ONE_CORE)
        cursor.execute(f"SELECT {columns}", {"room": room_id})
        found = cursor.fetchone()
    return dict(zip(_FIGURES, found or (), strict=True))


def purge_events(request: PurgeRequest) -> Iterator[HistoryPurged]:
    """Purges the events of a request. Yields the progress, always the same object, after every transaction.

    Must be called within ``purge_lock``, and not inside a transaction. Raises ``PurgeRefused``. Appends facts, so this
    process becomes a writer of the stream ``caches``.
    """
    done, place = HistoryPurged(), LOWEST
    while True:
        found = purge_batch(request, place, _EVENTS_PER_TRANSACTION, done)
        if found is None:
            return
        place = found
        yield done
