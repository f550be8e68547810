"""``purge room``: deletes a whole room. After the first transaction nobody can read or write it. Then its rows go in parts.

The first transaction deletes the room's own row, its current state, extremities, gaps and ranges. This transaction also
records the room in ``PurgedRoom`` and notifies other processes. From then on the room does not exist. A room with the
same ID cannot be created until all other rows are deleted (``events.models.purged_rooms``).

The other rows are deleted some thousand at a time, each time in one transaction: events with all that belongs to them,
state groups, and the rows of every other table with a room ID. The purge may be stopped after any transaction and run
again.

If the arguments name a folder, the room is archived before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models.functions import Now

from events.arguments import can_be_stored
from events.declarations import CACHE_NAME
from events.errors import PurgeRefused, UnknownRoom
from events.maintenance.archiving import archive_words, archiver
from events.maintenance.purge_lock import purge_lock
from events.maintenance.room_arguments import ROOM
from events.models.purged_rooms import PurgedRoom
from events.operations.purge_history import deleted_words, room_figures, table_lines
from events.room_lock import changing_room
from events.rows import BY_INDEX, LOCK_ROOM
from streams.conf import stream_settings
from streams.db.consistent_read import read_only_snapshot
from streams.holds.hold import CHANGE_FACTS
from streams.jobs.arguments import JSON, YES, Argument, OneOf, Type, dry_run
from streams.jobs.job_run import JobRun
from streams.jobs.models import Job
from streams.jobs.operation import Operation, Words, operation
from streams.jobs.throttle import throttled
from streams.runtime.text import safe_text

_EVENTS_PER_TRANSACTION = 2_000
_GROUPS_PER_TRANSACTION = 1_000
_ROWS_PER_TRANSACTION = 5_000
_MOST_NAMED = 5
#: Tables that record what was done to rooms. Their rows outlive the rooms.
_KEPT = {"events_purgedroom", "pipeline_importedroom", "pipeline_mendedroom"}
#: Tables whose rows go in the first transaction, or with the events and groups.
_DELETED_EARLIER = {
    "events_room", "events_event", "events_currentstate", "events_forwardextremity", "events_backwardextremity",
    "events_timelinegap", "events_eventvisibility", "events_roomsummary", "state_stategroup",
}  # fmt: skip

_LOCAL = """
SELECT state_key FROM events_currentstate WHERE room_id = %s AND type = 'm.room.member' AND membership = 'join'
  AND substr(state_key, strpos(state_key, ':') + 1) = %s ORDER BY state_key LIMIT %s
"""
_MEMBERS = "SELECT state_key FROM events_currentstate WHERE room_id = %s AND type = 'm.room.member'"
_BOUNDS = """
SELECT coalesce(min(stream_ordering), 0), coalesce(max(stream_ordering), 0),
    (SELECT coalesce(max(id), 0) FROM state_stategroup WHERE room_id = %(room)s)
FROM events_event WHERE room_id = %(room)s
"""
_AT_ONCE = (
    "events_forwardextremity", "events_backwardextremity", "events_timelinegap", "events_currentstate",
    "events_eventvisibility", "events_room",
)  # fmt: skip
_EVENTS = """
WITH next AS MATERIALIZED (
    SELECT event_id, stream_ordering FROM events_event
    WHERE room_id = %(room)s AND stream_ordering BETWEEN %(lowest)s AND %(highest)s ORDER BY stream_ordering LIMIT %(limit)s
), edges AS (
    DELETE FROM events_eventedge WHERE event_id = ANY(ARRAY(SELECT event_id FROM next))
), auth AS (
    DELETE FROM events_eventauth WHERE event_id = ANY(ARRAY(SELECT event_id FROM next))
), json AS (
    DELETE FROM events_eventjson WHERE event_id = ANY(ARRAY(SELECT event_id FROM next))
), gone AS (
    DELETE FROM events_event WHERE stream_ordering = ANY(ARRAY(SELECT stream_ordering FROM next))
)
SELECT count(*), max(stream_ordering) FROM next
"""
_GROUPS = """
WITH next AS MATERIALIZED (
    SELECT id, chain FROM state_stategroup WHERE room_id = %(room)s AND id > %(after)s AND id <= %(group)s
    ORDER BY id LIMIT %(limit)s
), rows AS (
    DELETE FROM state_stategroupdelta
    WHERE chain = ANY(ARRAY(SELECT DISTINCT chain FROM next)) AND state_group = ANY(ARRAY(SELECT id FROM next)) RETURNING 1
), gone AS (
    DELETE FROM state_stategroup WHERE id = ANY(ARRAY(SELECT id FROM next))
)
SELECT (SELECT count(*) FROM next), (SELECT max(id) FROM next), (SELECT count(*) FROM rows)
"""
_OTHER = "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE room_id = %s LIMIT %s))"
_COUNT_OTHER = "SELECT count(*) FROM {table} WHERE room_id = %s"

_BLOCKING = OneOf()


@operation
class PurgeRoom(Operation):
    """Deletes a whole room."""

    name = "purge room"
    help = "Delete a room whole, from every table; refused while users of this server are joined, unless by force."
    arguments = (
        ROOM,
        Argument("force", Type.FLAG, "even while users of this server are joined"),
        Argument(
            "block", Type.FLAG, "the room is not made again when its events arrive", one_of=_BLOCKING,
            in_form="the room is not made again",
        ),
        Argument(
            "unblock", Type.FLAG, "delete nothing; let a blocked room be made again", one_of=_BLOCKING, stored=False
        ),
        *archiver().arguments,
        dry_run("only say what would be deleted"),
        YES,
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "purge room",
            "Delete a room whole, from every table; refused while users of this server are joined, unless --force is given. It "
            "is gone for everybody at once, then its rows go; may be interrupted and repeated.",
            "purge room '!r:site' --dry-run",
        ),
    )

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive."""
        archiver().check(checked)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Writes an archive if the arguments name a folder for it. Then deletes the room. Returns the summary."""
        args, using, facts = run.arguments, run.using, dict[str, Any]()
        with purge_lock(args["room"], using):
            purge = RoomPurge(args["room"], using)
            before = purge.figures()
            run.store_before(before)
            purge.check(force=args["force"])
            after = dict.fromkeys(before, 0)
            if not args["dry_run"]:
                facts = self._carry_out(run, purge)
                after |= purge.figures()
            run.store_after(after)
        words = room_words(args, before["events_event"], facts.get("archive", {}).get("folder"))
        run.say(f"{safe_text(args['room'], None)}: {words}")
        return {
            "room_id": args["room"],
            "words": words,
            "dry_run": args["dry_run"],
            "blocked": args["block"],
            "tables": {table: [count, after.get(table, 0)] for table, count in before.items()},
            **facts,
        }

    plan = run

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        return table_lines(summary)

    def _carry_out(self, run: JobRun, purge: RoomPurge) -> dict[str, Any]:
        args, facts, positions = run.arguments, dict[str, Any](), None
        if args["archive"] is not None:
            if is_purging(purge.room_id, run.using):
                raise PurgeRefused(
                    f"A purge of {purge.room_id} was interrupted, so it cannot be archived any more. Go on without an archive; "
                    "the first run has written one if it was asked to."
                )
            written = archiver().write(run, args["room"])
            facts, positions = {"archive": written.figures}, written.positions
        by = Job.objects.using(run.using).get(pk=run.id).asked_by
        purge.start(by, block=args["block"], force=args["force"], positions=positions)
        with run.stage("rows", sum(purge.figures().values()), "rows") as count:
            for done in throttled(purge.carry_out()):
                count.add(sum(asdict(done).values()) - count())
        return facts

    def at_once(self, options: Mapping[str, Any]) -> str | None:
        """Unblocks the room, if ``--unblock`` is given."""
        if not options.get("unblock"):
            return None
        if not unblock_room(options["room"], stream_settings().database):
            raise CommandError(f"{options['room']} is not blocked.", returncode=1)
        return f"{options['room']} may be made again"


def room_words(args: Mapping[str, Any], events: int, folder: str | None = None) -> str:
    """Returns the sentence that describes a purge of a whole room."""
    blocked = ", and not made again" if args["block"] else ""
    return f"the whole room with {events:,} events: {deleted_words(args)}{blocked}; {archive_words(args, folder)}"


# --- the work ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RoomPurged:
    """The progress of the purge of a room, in deleted rows."""

    events: int = 0
    state_groups: int = 0
    state_rows: int = 0
    others: int = 0


class RoomPurge:
    """The deletion of one room. Raises ``UnknownRoom`` if neither the room nor a begun deletion of it exists."""

    def __init__(self, room_id: str, using: str) -> None:
        self.room_id, self._using = room_id, using
        self.done = RoomPurged()
        if not can_be_stored(room_id) or not (self._is_here() or is_purging(room_id, using)):
            raise UnknownRoom(f"There is no room {room_id!r:.300}.")

    def figures(self) -> dict[str, int]:
        """Returns the number of rows to delete, by table. Tables without such rows are left out, except the table of events."""
        with read_only_snapshot(self._using, is_long=True) as cursor:
            found = room_figures(self.room_id, self._using)
            for table in (*sorted(_DELETED_EARLIER - found.keys()), *_other_tables()):
                cursor.execute(_COUNT_OTHER.format(table=table), [self.room_id])
                found[table] = cursor.fetchone()[0]
        return {table: count for table, count in found.items() if count or table == "events_event"}

    def check(self, *, force: bool) -> None:
        """Raises ``PurgeRefused`` while users of this server are joined. ``force`` skips the check."""
        if force:
            return
        with connections[self._using].cursor() as cursor:
            cursor.execute(_LOCAL, [self.room_id, stream_settings().server_name, _MOST_NAMED + 1])
            joined = [user for (user,) in cursor.fetchall()]
        if joined:
            more = ", …" if len(joined) > _MOST_NAMED else ""
            raise PurgeRefused(
                f"Users of this server are joined to {self.room_id}: {', '.join(joined[:_MOST_NAMED])}{more}. Let them leave "
                "first, or purge it by force: then the room vanishes for them without a word."
            )

    def start(self, by: str, *, block: bool, force: bool, positions: tuple[int, int] | None = None) -> None:
        """Carries out the first transaction. If an earlier run has done so already, only ``block`` is stored.

        ``by`` is recorded as the user who asked for the purge. ``block`` forbids that the room is created again
        afterwards. ``positions`` are the lowest and highest stream position in an archive of the room. Raises
        ``PurgeRefused`` if the room's events have another lowest or highest position. Raises ``PurgeRefused`` also
        while users of this server are joined, unless ``force`` is true. Appends facts, so this process becomes a writer
        of the stream ``caches``.
        """
        # A writer that holds this lock commits first. One that waits for it finds no room afterwards.
        with changing_room(self.room_id, self._using, LOCK_ROOM) as (cursor, rows):
            if not self._is_here():  # a stopped run has committed this transaction
                PurgedRoom.objects.using(self._using).filter(pk=self.room_id).update(blocked=block)
                return
            self.check(force=force)  # under the lock: a user may have joined since the caller's check
            # A archives the room, B stores an event, A locks the room. Without the comparison below, B's event would be
            # deleted and be in no archive.
            cursor.execute(_BOUNDS, {"room": self.room_id})
            lowest, highest, group = cursor.fetchone()
            if positions not in (None, (lowest, highest)):
                raise PurgeRefused(
                    f"{self.room_id} has changed since it was archived; nothing was deleted. Purge it again."
                )
            bounds = {"lowest_position": lowest, "highest_position": highest, "highest_group": group}
            new = {**bounds, "asked_by": by, "blocked": block, "finished_at": None}
            PurgedRoom.objects.using(self._using).update_or_create(pk=self.room_id, defaults=new)
            cursor.execute(_MEMBERS, [self.room_id])
            users = [user for (user,) in cursor.fetchall()]
            rows.clear(self.room_id, *_AT_ONCE)
            rows.stale.append((CACHE_NAME, None))
            rows.drop_state(self.room_id, users)

    def carry_out(self) -> Iterator[RoomPurged]:
        """Deletes the rows of the room that the first transaction did not delete. Yields the progress after every transaction."""
        room = PurgedRoom.objects.using(self._using).get(pk=self.room_id)
        yield from self._events(room)
        yield from self._groups(room)
        for table in _other_tables():
            yield from self._other(table)
        PurgedRoom.objects.using(self._using).filter(pk=self.room_id).update(finished_at=Now())

    def _is_here(self) -> bool:
        with connections[self._using].cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT FROM events_room WHERE room_id = %s)", [self.room_id])
            return bool(cursor.fetchone()[0])

    def _step(self, statement: str, names: Mapping[str, Any]) -> Any:
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
            cursor.execute(BY_INDEX)
            cursor.execute(statement, names)
            return cursor.fetchone()

    def _events(self, room: PurgedRoom) -> Iterator[RoomPurged]:
        names = {"room": self.room_id, "highest": room.highest_position, "limit": _EVENTS_PER_TRANSACTION}
        place = room.lowest_position - 1
        while True:
            count, last = self._step(_EVENTS, {**names, "lowest": place + 1})
            if not count:
                return
            place = last
            self.done.events += count
            yield self.done

    def _groups(self, room: PurgedRoom) -> Iterator[RoomPurged]:
        names = {"room": self.room_id, "group": room.highest_group, "limit": _GROUPS_PER_TRANSACTION}
        last = 0
        while True:
            # From the last group on. Otherwise each transaction would read the index entries of all groups deleted before.
            groups, last, rows = self._step(_GROUPS, {**names, "after": last})
            if not groups:
                return
            self.done.state_groups += groups
            self.done.state_rows += rows
            yield self.done

    def _other(self, table: str) -> Iterator[RoomPurged]:
        while True:
            with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
                cursor.execute(CHANGE_FACTS)  # receipts, for example
                cursor.execute(_OTHER.format(table=table), [self.room_id, _ROWS_PER_TRANSACTION])
                count = cursor.rowcount
            if not count:
                return
            self.done.others += count
            yield self.done


def is_purging(room_id: str, using: str) -> bool:
    """Returns true if rows of the room are still to be deleted."""
    return PurgedRoom.objects.using(using).filter(pk=room_id, finished_at__isnull=True).exists()


def unblock_room(room_id: str, using: str) -> bool:
    """Removes the block of a purged room, so that the room can be created again. Returns false if it was not blocked."""
    return bool(PurgedRoom.objects.using(using).filter(pk=room_id, blocked=True).update(blocked=False))


def _other_tables() -> list[str]:
    """Returns the names of the tables whose rows are deleted last, sorted.

    These are all managed tables with a column ``room_id``, except two sets. The rows of ``_DELETED_EARLIER`` are deleted earlier.
    The rows of ``_KEPT`` record what was done to rooms, and stay.
    """
    found = {
        model._meta.db_table
        for model in apps.get_models()
        if model._meta.managed and any(field.column == "room_id" for field in model._meta.concrete_fields)
    }
    return sorted(found - _KEPT - _DELETED_EARLIER)
