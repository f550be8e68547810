"""``room restore``: puts an archive of a room back. Every file is checked before anything is written.

If the room still exists, its events are restored in small transactions, with a pause after each. Events that are stored
already are not changed. A killed job can be run again. A table maps the ID of each archived state group to the ID of
its copy in the database. The table's name is computed from the archive's manifest. The table commits together with the
copies. So the next run finds the table and copies no state group twice.

If the room no longer exists, it is restored as a whole, in one transaction. ``events.maintenance.restore`` has the SQL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from django.db import connections

from events.declarations import CACHE_NAME
from events.errors import PurgeRefused
from events.maintenance.purge_lock import purge_lock
from events.maintenance.restore import (
    EventsRestored,
    RestoredRoom,
    add_archived,
    copy_groups,
    restore_events,
    restore_room,
    restore_visibility,
    without_misfits,
)
from events.models import CurrentState, Room
from events.operations.purge_room import is_purging
from pipeline.archive.folders import folder_of_archive
from pipeline.archive.format import MANIFEST, Manifest
from pipeline.archive.parts import read_batches
from pipeline.archive.read_parts import open_archive
from pipeline.errors import ArchiveDamaged, ArchiveElsewhere
from state.group_ids import reserve_group_ids
from streams import registry
from streams.caches import invalidate, invalidate_room_state
from streams.db.consistent_read import long_transaction
from streams.jobs.arguments import JSON, Argument, Type
from streams.jobs.job_run import Count, JobRun
from streams.jobs.operation import Operation, Words, operation
from streams.jobs.throttle import throttled

__all__ = ["Restore"]

EVENTS_PER_TRANSACTION = 2_000
_IN_PLACE = "SELECT event_id FROM events_event WHERE event_id = ANY(%s) AND (NOT outlier OR event_id = ANY(%s))"
_MAP = "INSERT INTO {mapping} SELECT * FROM unnest(%s::bigint[], %s::bigint[])"
_MAPPED = "SELECT count(*), count(g.id) FROM {mapping} map LEFT JOIN state_stategroup g USING (id)"
#: Tables of an archive of a whole room -> the tables whose rows they have.
_OF_ROOM = {
    "current": "events_currentstate",
    "change": "events_currentstatedelta",
    "visibility": "events_eventvisibility",
}


def _folder(_: str, value: Any) -> str:
    return str(folder_of_archive(value))


@operation
class Restore(Operation):
    """Restores an archive."""

    name = "restore"
    help = "Put an archive of a room back: its events, their states and who sees them. What is here stays as it is."
    arguments = (
        Argument(
            "archive", Type.TEXT, "the folder of one archive, as archive or purge named it", typed="FOLDER",
            required=True, check=_folder, in_form="the folder of one archive",
        ),
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "room restore",
            "Put an archive of a room back, byte for byte, with states and visibility. Safe beside writers; may be repeated.",
            "room restore /backup/room-1a2b --json",
        ),
    )

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Checks all files of the archive, then restores their rows. Returns the summary."""
        folder = Path(run.arguments["archive"])
        with run.stage("check", None, "bytes") as count:
            manifest = open_archive(folder, count.add)
        with purge_lock(manifest.room_id, run.using):
            return _Restore(run, folder, manifest).run()

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield (
            f"{summary['room_id']}: of {summary['archived']} events {summary['restored']} written again, {summary['placed']} "
            f"given their place again, {summary['here']} were here; {summary['redacted']} redacted since; visibility "
            f"{summary['visibility']}"
        )


class _Restore:
    """One run of the job that restores an archive."""

    def __init__(self, run: JobRun, folder: Path, manifest: Manifest) -> None:
        self._run, self._folder, self._manifest = run, folder, manifest
        self._room_id, self._using = manifest.room_id, run.using
        self._mapping = f"pipeline_restore_{sha256((folder / MANIFEST).read_bytes()).hexdigest()[:16]}"
        self._done = EventsRestored()
        self._groups = 0

    def run(self) -> Mapping[str, Any]:
        """Restores everything and returns the summary."""
        gone = not Room.objects.using(self._using).filter(pk=self._room_id).exists()
        self._check_fit(gone)
        with ExitStack() as stack:
            cursor = stack.enter_context(connections[self._using].cursor())
            if gone:
                stack.enter_context(long_transaction(self._using))
                self._restore_room(cursor)
            extremities = {row["event_id"] for row in self._rows("leaf")}
            gaps = {row["stream_ordering"]: row["instance_name"] for row in self._rows("hole")}
            groups = self._copied_groups(cursor)
            self._events(RestoredRoom(self._room_id, self._using, groups, extremities, gaps, gone))
            rebuilt = self._finish(gone)
        return {
            "room_id": self._room_id,
            "archived": self._manifest.rows("event"),
            **asdict(self._done),
            "state_groups": self._groups,
            "visibility": "made anew" if rebuilt else "as archived",
            "room": "back" if gone else "was here",
        }

    def _check_fit(self, gone: bool) -> None:
        """Checks that the archive can be restored to this database.

        ``gone`` says that the room no longer exists. Raises ``ArchiveElsewhere`` if the room is gone and the archive
        has only a part of its history. Also raises ``ArchiveElsewhere`` if the archive has positions that this database
        has not given out yet. Raises ``PurgeRefused`` if a purge of the room was begun and not finished.
        """
        if gone and self._manifest.cut is not None:
            raise ArchiveElsewhere(
                f"{self._room_id} is not here, and the archive has only its history below depth {self._manifest.cut}. Restore an "
                "archive of the whole room first."
            )
        if is_purging(self._room_id, self._using):
            raise PurgeRefused(
                f"{self._room_id} is not deleted to the end: run manage.py purge room on it again first."
            )
        lowest, highest = self._manifest.positions
        with connections[self._using].cursor() as cursor:
            for stream, position in (("events", highest), ("backfill", -lowest)):
                if position > registry.get(stream).sequence_value(cursor):
                    raise ArchiveElsewhere(
                        f"The archive has position {position} of the stream {stream}, which this database has not given out "
                        "yet: it is of another one, or of a later time. Import its events: manage.py import_events --as-history "
                        f"{self._folder}/event-*.parquet"
                    )
        rooms = [(row["room_id"], row["room_version"]) for row in self._rows("room")]
        if rooms != [(self._room_id, self._manifest.room_version)]:
            raise ArchiveDamaged(
                f"{self._folder}: the files are not those of {self._room_id} in room version {self._manifest.room_version}, "
                "which the manifest names. Take another copy of the archive; nothing was changed."
            )

    # --- rows -------------------------------------------------------------------------------------------------------

    def _batches(self, table: str, *columns: str) -> Iterator[list[dict[str, Any]]]:
        for file in self._manifest.of(table):
            for batch in read_batches(self._folder / file.name, table, EVENTS_PER_TRANSACTION):
                yield (batch.select(columns) if columns else batch).to_pylist()

    def _rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        return chain.from_iterable(self._batches(table, *columns))

    def _restore_room(self, cursor: Any) -> None:
        (room,) = self._rows("room")
        restore_room(cursor, room)
        for table, stored_in in _OF_ROOM.items():
            for rows in self._batches(table):
                add_archived(cursor, self._room_id, stored_in, rows)

    # --- state groups -----------------------------------------------------------------------------------------------

    def _copied_groups(self, cursor: Any) -> dict[int, int]:
        """Copies archived state groups to the database. Returns archived ID -> ID of the copy.

        These are the groups of archived events that are not stored here, and all groups below these groups.

        A group is stored as a delta to the group below it. Copies nothing if an earlier run of the job, which was killed,
        has copied these groups.
        """
        if self._has_mapping(cursor):
            cursor.execute(f"SELECT archived, id FROM {self._mapping}")
            return dict(cursor.fetchall())
        needed = sorted(self._needed_groups(cursor))
        self._groups = len(needed)
        with long_transaction(self._using):
            cursor.execute(f"DROP TABLE IF EXISTS {self._mapping}")
            cursor.execute(f"CREATE TABLE {self._mapping} (archived bigint PRIMARY KEY, id bigint NOT NULL)")
            ids = dict(zip(needed, reserve_group_ids(cursor, len(needed)), strict=True))
            for groups in self._batches("group"):
                copy_groups(cursor, self._room_id, (group for group in groups if group["id"] in ids), (), ids)
            for deltas in self._batches("delta"):
                copy_groups(cursor, self._room_id, (), (delta for delta in deltas if delta["state_group"] in ids), ids)
            # The mapping commits with the groups. If the mapping exists when a killed job is run again, all groups were
            # copied.
            cursor.execute(_MAP.format(mapping=self._mapping), [list(ids), list(ids.values())])
        return ids

    def _has_mapping(self, cursor: Any) -> bool:
        """Returns true if an earlier run, which was killed, copied the state groups, and all copies still exist."""
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [self._mapping])
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(_MAPPED.format(mapping=self._mapping))
        mapped, here = cursor.fetchone()
        return bool(mapped == here)

    def _needed_groups(self, cursor: Any) -> set[int]:
        needed: set[int | None] = set()
        for events in self._batches("event", "event_id", "outlier", "state_group"):
            ids, outliers = [row["event_id"] for row in events], [row["event_id"] for row in events if row["outlier"]]
            cursor.execute(_IN_PLACE, [ids, outliers])
            here = {event_id for (event_id,) in cursor.fetchall()}
            needed.update(row["state_group"] for row in events if row["event_id"] not in here)
        groups = [(row["id"], row["prev_group"]) for row in self._rows("group", "id", "prev_group")]
        for group, prev in reversed(groups):  # so that the groups below a group come after it
            if group in needed:
                needed.add(prev)
        return {group for group in needed if group is not None}

    # --- events -----------------------------------------------------------------------------------------------------

    def _events(self, room: RestoredRoom) -> None:
        with self._run.stage("restore", self._manifest.rows("event"), "events") as count:
            steps = self._steps(count, room)
            deque(steps if room.whole else throttled(steps), maxlen=0)

    def _steps(self, count: Count, room: RestoredRoom) -> Iterator[None]:
        """Restores the events in batches, each batch in a transaction. Yields after each batch.

        If the room is gone, these transactions are savepoints of one outer transaction.
        """
        for events in map(without_misfits, self._batches("event")):
            restore_events(room, events, self._done)
            count.add(len(events))
            yield

    def _finish(self, gone: bool) -> bool:
        with long_transaction(self._using) as cursor:
            rebuilt = not gone and restore_visibility(cursor, self._room_id, self._batches("visibility"), self._using)
            cursor.execute(f"DROP TABLE {self._mapping}")
            members = CurrentState.objects.using(self._using).filter(room_id=self._room_id, type="m.room.member")
            if gone:
                invalidate(CACHE_NAME)
                invalidate_room_state(self._room_id, list(members.values_list("state_key", flat=True)))
        return rebuilt
