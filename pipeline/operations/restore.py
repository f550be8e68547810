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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import connections

from events.errors import PurgeRefused
from events.maintenance.purge_lock import purge_lock
from events.maintenance.restore import (
    TEMPORARY,
    EventsRestored,
    copy_groups,
    invalidate_cached_events,
    restore_events,
    restore_room,
    restore_visibility,
)
from events.models import CurrentState, Room
from events.operations.purge_room import is_purging
from events.room_lock import room_transaction
from pipeline.archive.folders import folder_of_archive
from pipeline.archive.format import MANIFEST, ArchivedFile, Manifest
from pipeline.archive.parts import read_batches
from pipeline.archive.read_parts import open_archive
from pipeline.errors import ArchiveDamaged, ArchiveElsewhere
from streams import registry
from streams.caches import invalidate_room_state
from streams.db import driver
from streams.db.consistent_read import long_transaction
from streams.jobs.arguments import JSON, Argument, Type
from streams.jobs.job_run import Count, JobRun
from streams.jobs.operation import Operation, Words, operation
from streams.jobs.throttle import throttled

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Restore"]

EVENTS_PER_TRANSACTION = 2_000
_IDS_PER_QUERY = 10_000
_IN_PLACE = "SELECT event_id FROM events_event WHERE event_id = ANY(%s) AND (NOT outlier OR event_id = ANY(%s))"
_MAPPED = "SELECT count(*), count(g.id) FROM {mapping} map LEFT JOIN state_stategroup g USING (id)"


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
            stack.callback(self._drop_temporary)
            if gone:
                stack.enter_context(long_transaction(self._using))
            self._temporary(cursor)
            if gone:
                restore_room(cursor, self._room_id)
            self._copy_groups(cursor)
            self._events(gone)
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
        rooms = [
            row for batch in self._batches("room") for row in batch.select(["room_id", "room_version"]).to_pylist()
        ]
        if rooms != [{"room_id": self._room_id, "room_version": self._manifest.room_version}]:
            raise ArchiveDamaged(
                f"{self._folder}: the files are not those of {self._room_id} in room version {self._manifest.room_version}, "
                "which the manifest names. Take another copy of the archive; nothing was changed."
            )

    # --- tables -----------------------------------------------------------------------------------------------------

    def _temporary(self, cursor: Any) -> None:
        """Creates the temporary tables. Fills all of them except those for events, state groups and deltas."""
        self._drop_temporary()
        for name, columns in TEMPORARY.items():
            cursor.execute(f"CREATE TEMPORARY TABLE {name} ({columns})")
        for table in ("room", "leaf", "hole", "visibility", "current", "change"):
            for batch in self._batches(table):
                _copy(cursor, f"restored_{table}", batch)

    def _drop_temporary(self) -> None:
        if connections[self._using].in_atomic_block and connections[self._using].needs_rollback:
            return  # in a failed transaction no statement runs; the tables go with it, or with the connection
        with connections[self._using].cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {', '.join(f'pg_temp.{name}' for name in TEMPORARY)}")

    def _batches(self, table: str, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        for file in self._manifest.of(table):
            yield from self._of_file(file, rows or EVENTS_PER_TRANSACTION)

    def _of_file(self, file: ArchivedFile, rows: int) -> Iterator[pa.RecordBatch]:
        return read_batches(self._folder / file.name, file.table, rows)

    # --- state groups -----------------------------------------------------------------------------------------------

    def _copy_groups(self, cursor: Any) -> None:
        """Copies archived state groups to the database.

        These are the groups of archived events that are not stored here, and all groups below these groups.

        A group is stored as a delta to the group below it. Does nothing if an earlier run of the job, which was killed,
        has copied these groups.
        """
        if self._has_mapping(cursor):
            return
        needed = self._needed_groups(cursor)
        self._groups = len(needed)
        with long_transaction(self._using):
            cursor.execute(f"DROP TABLE IF EXISTS {self._mapping}")
            cursor.execute(f"CREATE TABLE {self._mapping} (archived bigint PRIMARY KEY, id bigint NOT NULL)")
            for table, column in (("group", "id"), ("delta", "state_group")):
                for batch in self._batches(table):
                    _copy(cursor, f"restored_{table}", _only(batch, column, needed))
            cursor.execute("ANALYZE restored_group; ANALYZE restored_delta")
            # The mapping commits with the groups. If the mapping exists when a killed job is run again, all groups were
            # copied.
            copy_groups(cursor, self._room_id, self._mapping)
            cursor.execute("TRUNCATE restored_group, restored_delta")

    def _has_mapping(self, cursor: Any) -> bool:
        """Returns true if an earlier run, which was killed, copied the state groups, and all copies still exist."""
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [self._mapping])
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(_MAPPED.format(mapping=self._mapping))
        mapped, here = cursor.fetchone()
        return bool(mapped == here)

    def _needed_groups(self, cursor: Any) -> set[int]:
        needed: set[int] = set()
        for batch in self._batches("event", _IDS_PER_QUERY):
            ids, outliers = batch.column("event_id").to_pylist(), batch.column("outlier").to_pylist()
            cursor.execute(_IN_PLACE, [ids, [one for one, out in zip(ids, outliers, strict=True) if out]])
            here = {event_id for (event_id,) in cursor.fetchall()}
            groups = batch.column("state_group").to_pylist()
            needed.update(g for one, g in zip(ids, groups, strict=True) if g is not None and one not in here)
        below = [
            pair
            for batch in self._batches("group", _IDS_PER_QUERY)
            for pair in zip(batch.column("id").to_pylist(), batch.column("prev_group").to_pylist(), strict=True)
        ]
        needed.update(self._below(needed, below))
        return needed

    @staticmethod
    def _below(needed: set[int], below: list[tuple[int, int | None]]) -> set[int]:
        """Returns the IDs of the state groups in ``needed``, and of all groups below them.

        ``below`` holds (state group, the group to which it is a delta or None), in ascending order of the state group.
        """
        found = set(needed)
        for group, prev in reversed(below):
            if group in found and prev is not None:
                found.add(prev)
        return found

    # --- events -----------------------------------------------------------------------------------------------------

    def _events(self, gone: bool) -> None:
        with self._run.stage("restore", self._manifest.rows("event"), "events") as count:
            steps = self._steps(count, gone)
            deque(steps if gone else throttled(steps), maxlen=0)

    def _steps(self, count: Count, gone: bool) -> Iterator[None]:
        """Restores the events in batches, each batch in a transaction. Yields after each batch.

        If the room is gone, these transactions are savepoints of one outer transaction.
        """
        for batch in self._batches("event"):
            with room_transaction(self._using), connections[self._using].cursor() as cursor:
                _copy(cursor, "restored_event", batch)
                restore_events(self._room_id, self._mapping, self._using, self._done, whole=gone)
            count.add(batch.num_rows)
            yield

    def _finish(self, gone: bool) -> bool:
        with long_transaction(self._using) as cursor:
            rebuilt = not gone and restore_visibility(cursor, self._room_id, self._using)
            cursor.execute(f"DROP TABLE {self._mapping}")
            members = CurrentState.objects.using(self._using).filter(room_id=self._room_id, type="m.room.member")
            if gone:
                invalidate_cached_events()
                invalidate_room_state(self._room_id, list(members.values_list("state_key", flat=True)))
        return rebuilt


def _only(batch: pa.RecordBatch, column: str, wanted: set[int]) -> pa.RecordBatch:
    """Returns the rows of ``batch`` whose value in ``column`` is in ``wanted``."""
    import pyarrow as pa  # noqa: PLC0415 - only where rows are read

    return batch.filter(pa.array([value in wanted for value in batch.column(column).to_pylist()], pa.bool_()))


def _copy(cursor: Any, table: str, batch: pa.RecordBatch) -> None:
    """Copies rows into a temporary table by binary COPY."""
    import pgpq  # noqa: PLC0415 - only where rows are written

    if not batch.num_rows:
        return
    encoder = pgpq.ArrowToPostgresBinaryEncoder(batch.schema)
    content = encoder.write_header() + encoder.write_batch(batch) + encoder.finish()
    columns = ", ".join(batch.schema.names)
    driver.copy_in(cursor, f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)", content)
