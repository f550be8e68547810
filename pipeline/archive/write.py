"""Writes the archive of a room to Parquet files: all events, or those that a purge will delete.

The room is read in one snapshot. If there are many events, Spark's executors write the files. Otherwise this process
writes the files, with the same code. While an archive is being written, the name of its folder ends in ``.partial``. A
killed or failed job may leave such a folder. The next job that archives the room deletes it.

The caller must hold ``events.maintenance.purge_lock``. So no other job purges or restores the room
meanwhile.

Runs in the job's process, which is Spark's driver if executors write the files. Needs Django.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from events.errors import UnknownRoom
from events.maintenance.archiving import Archived
from events.maintenance.purge_batch import PURGED, PurgeRequest
from pipeline.archive.format import (
    MOST_FILES,
    ONE_FILE,
    ONE_FILE_OF_WHOLE,
    PARTIAL,
    ArchivedFile,
    Manifest,
    write_manifest,
)
from pipeline.archive.parts import ArchivePart, write_part
from pipeline.disk_full import disk_full
from pipeline.errors import ArchiveTooLarge, DiskFull
from pipeline.private_files import fsync_folder, make_folder, remove_folder
from pipeline.source.shared_snapshot import SHARE_SNAPSHOT, in_snapshot
from pipeline.spark.job_steps import spark_steps
from pipeline.spark.run_tasks import run_tasks
from pipeline.spark.site_session import site_session
from streams.conf import stream_settings
from streams.db import driver
from streams.jobs.job_run import JobRun

__all__ = ["ArchiveRequest", "archive_room", "partial_archives"]

_NAME = "replsite archive"
EVENTS_PER_FILE = 20_000
GROUPS_PER_FILE = 50_000
SPARK_EVENTS = 200_000
"""With at least this number of events, Spark writes the files, unless the request says otherwise."""

_LOCK_ROOM = "SELECT room_version FROM events_room WHERE room_id = %s FOR UPDATE"
_POSITIONS = (
    "SELECT coalesce(min(stream_ordering), 0), coalesce(max(stream_ordering), 0) FROM events_event WHERE room_id = %s"
)
_WHOLE = "e.room_id = %(room)s"
_EVENTS = """
SELECT e.event_id, j.room_version, j.json, e.stream_ordering, e.instance_name,
    (extract(epoch FROM e.received_at) * 1000000)::bigint AS received_us, e.type, e.state_key, e.sender,
    e.topological_ordering, e.origin_server_ts, e.membership, e.redacts, e.relates_to, e.outlier, e.rejected_reason,
    e.soft_failed, e.redacted_by, e.state_unresolved,
    (extract(epoch FROM e.censored_at) * 1000000)::bigint AS censored_us, e.state_group,
    ARRAY(SELECT prev_event_id FROM events_eventedge edge WHERE edge.event_id = e.event_id ORDER BY 1) AS prev_event_ids,
    a.auth_event_ids
FROM events_event e LEFT JOIN events_eventjson j USING (event_id) LEFT JOIN events_eventauth a USING (event_id)
WHERE {selected} AND (e.topological_ordering, e.stream_ordering) BETWEEN (%(low_depth)s, %(low)s) AND (%(high_depth)s, %(high)s)
ORDER BY e.topological_ordering DESC, e.stream_ordering DESC
"""
#: Selects the latest and the earliest event of every file, and the number of its events. Depths and positions are negated, so
#: that min() returns the latest event.
_EVENT_BOUNDS = """
SELECT min(ARRAY[-topological_ordering, -stream_ordering]), max(ARRAY[-topological_ordering, -stream_ordering]), count(*) FROM (
    SELECT e.topological_ordering, e.stream_ordering,
        (row_number() OVER (ORDER BY e.topological_ordering DESC, e.stream_ordering DESC) - 1) / %(size)s AS file
    FROM events_event e WHERE {selected}
) AS numbered GROUP BY file ORDER BY file
"""
#: State groups of the selected events, and all groups that these are deltas to. Of each chain, all groups up to the highest
#: needed one are included.
_REACH = """
WITH RECURSIVE own AS MATERIALIZED (
    SELECT g.chain, max(g.id) AS upto FROM state_stategroup g
    WHERE g.id IN (SELECT e.state_group FROM events_event e WHERE {selected} AND e.state_group IS NOT NULL) GROUP BY g.chain
), down AS (
    SELECT chain, upto FROM own
    UNION
    SELECT below.chain, below.id FROM down JOIN state_stategroup first ON first.id = down.chain
    JOIN state_stategroup below ON below.id = first.prev_group
), reach AS MATERIALIZED (
    SELECT chain, max(upto) AS upto FROM down GROUP BY chain
)
"""
_REACHED = (
    "FROM state_stategroup g JOIN reach ON g.chain = reach.chain AND g.id <= reach.upto WHERE g.room_id = %(room)s"
)
_GROUP_BOUNDS = f"""
{{reach}} SELECT min(id), max(id) FROM (
    SELECT g.id, (row_number() OVER (ORDER BY g.id) - 1) / %(size)s AS file {_REACHED}
) AS numbered GROUP BY file ORDER BY file
"""
_GROUPS = f"""
{{reach}} SELECT g.id, g.prev_group, g.chain, g.hops, g.keys, g.rows_to_read {_REACHED} AND g.id BETWEEN %(low)s AND %(high)s
ORDER BY g.id
"""
_DELTAS = f"""
{{reach}} SELECT d.chain, d.state_group, d.type, d.state_key, d.event_id
FROM (SELECT g.chain, g.id {_REACHED} AND g.id BETWEEN %(low)s AND %(high)s) AS needed
JOIN state_stategroupdelta d ON d.chain = needed.chain AND d.state_group = needed.id
ORDER BY d.state_group, d.type, d.state_key
"""
#: Tables that fit into one file each: ``ONE_FILE`` and ``ONE_FILE_OF_WHOLE``.
_SINGLE: Mapping[str, str] = {
    "room": "SELECT room_id, room_version, creator, create_event_id, current_state_unresolved, visibility_unresolved "
    "FROM events_room WHERE room_id = %(room)s",
    "leaf": "SELECT leaf.event_id FROM events_forwardextremity leaf JOIN events_event e USING (event_id) "
    "WHERE leaf.room_id = %(room)s AND {selected} ORDER BY leaf.event_id",
    "gap": "SELECT event_id FROM events_backwardextremity WHERE room_id = %(room)s ORDER BY event_id",
    "hole": "SELECT stream_ordering, instance_name FROM events_timelinegap WHERE room_id = %(room)s ORDER BY stream_ordering",
    "visibility": "SELECT user_id, kind, first, last FROM events_eventvisibility WHERE room_id = %(room)s ORDER BY id",
    "current": "SELECT type, state_key, event_id, membership FROM events_currentstate WHERE room_id = %(room)s "
    "ORDER BY type, state_key",
    "change": "SELECT stream_ordering, instance_name, (extract(epoch FROM received_at) * 1000000)::bigint AS received_us, "
    "type, state_key, event_id, prev_event_id FROM events_currentstatedelta WHERE room_id = %(room)s "
    "ORDER BY stream_ordering, type, state_key",
}


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """The arguments for writing an archive of the events below depth ``cut``, or of the whole room if ``cut`` is None.

    If ``spark`` is true, Spark writes the files. If it is false, this process writes them. If it is None, Spark writes
    them if there are many events.
    """

    room_id: str
    folder: Path
    cut: int | None = None
    delete_local: bool = False
    spark: bool | None = None
    master: str | None = None


def archive_room(run: JobRun, request: ArchiveRequest) -> Archived:
    """Writes and checks an archive.

    Raises ``UnknownRoom``, ``ArchiveDamaged``, ``ArchiveTooLarge``, ``DiskFull``, and errors of Spark and the database.
    An archive that failed with an error is not left under its final name.
    """
    for left in partial_archives(request.folder, request.room_id):
        remove_folder(left)
    final = request.folder / f"{_name(request.room_id)}-{run.id}"
    folder = final.with_name(final.name + PARTIAL)
    try:
        with disk_full():
            make_folder(request.folder)
            folder.mkdir(mode=0o700)
            manifest = _Archive(run, request, folder).write()
            write_manifest(folder, manifest)
            _put_in_place(folder, final)
    except BaseException as error:
        with suppress(OSError):
            remove_folder(folder)
        if isinstance(error, DiskFull):
            raise DiskFull(
                f"The disk of {request.folder} is full: no archive was written and nothing was deleted. Free space, run it again."
            ) from error
        raise
    figures = {
        "folder": str(final),
        "events": manifest.rows("event"),
        "state_groups": manifest.rows("group"),
        "files": len(manifest.files),
        "bytes": manifest.size,
    }
    return Archived(figures, manifest.positions)


def partial_archives(folder: Path, room_id: str) -> list[Path]:
    """Returns the folders of unfinished archives of the room that killed jobs have left in ``folder``."""
    return sorted(folder.glob(f"{_name(room_id)}-*{PARTIAL}"))


def _name(room_id: str) -> str:
    """Returns a folder name for the room: readable, and different for every room."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", room_id).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(room_id.encode()).hexdigest()[:12]}"


def _put_in_place(folder: Path, final: Path) -> None:
    """Renames the archive to its final name.

    When this function returns, a power failure cannot undo the renaming. So the archived rows may then be deleted.
    """
    # The files' contents are on disk already, but their names may not be. Three names must be synced: those of the files in
    # the folder, that of the folder itself, and those of the folders above, which may be just as new.
    fsync_folder(folder)
    folder.rename(final)
    fsync_folder(final.parent)
    for above in final.parent.parents:
        with suppress(PermissionError):  # a folder of another account is not a new one
            fsync_folder(above)


@contextmanager
def _snapshot(room_id: str, using: str) -> Iterator[tuple[Any, str, str]]:
    """Yields (cursor in a snapshot of the room, name of the snapshot, room version)."""
    with (
        closing(driver.direct_connection(using, application_name=_NAME)) as reading,
        closing(driver.direct_connection(using, application_name="replsite archive lock")) as locking,
        reading.cursor() as cursor,
    ):
        # Writers take the room's lock before they reserve a position. Without the lock here: A reserves 5, B reserves 6 and
        # commits, the snapshot sees 6 as the highest position, then A commits 5. The archive lacks 5, but 5 lies within
        # ``Manifest.positions``, so the purge would delete an event that is not archived.
        with locking.cursor() as lock, driver.in_transaction(lock):
            lock.execute(_LOCK_ROOM, [room_id])
            found = lock.fetchone()
            if found is None:
                raise UnknownRoom(f"There is no room {room_id!r:.300}.")
            cursor.execute(SHARE_SNAPSHOT)
            driver.go_to_last_result(cursor)
            name = cursor.fetchone()[0]
        yield cursor, name, found[0]


class _Archive:
    """An archive being written."""

    def __init__(self, run: JobRun, request: ArchiveRequest, folder: Path) -> None:
        self._run, self._request, self._folder = run, request, folder
        whole = request.cut is None
        purge = PurgeRequest(request.room_id, request.cut or 0, request.delete_local, run.using)
        self._names = purge.names
        self._selected = _WHOLE if whole else PURGED
        self._single = ONE_FILE + ONE_FILE_OF_WHOLE if whole else ONE_FILE

    def write(self) -> Manifest:
        """Writes all files and returns the manifest."""
        request = self._request
        with _snapshot(request.room_id, self._run.using) as (cursor, snapshot, version):
            cursor.execute(_POSITIONS, [request.room_id])
            lowest, highest = cursor.fetchone()
            parts, events = self._parts(cursor)
            files = self._write(parts, events, snapshot)
        return Manifest(
            room_id=request.room_id,
            room_version=version,
            cut=request.cut,
            delete_local=request.delete_local,
            server_name=stream_settings().server_name,
            archived_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            job=self._run.id,
            positions=(lowest, highest),
            files=tuple(files),
        )

    def _parts(self, cursor: Any) -> tuple[list[ArchivePart], int]:
        """Returns (files to write, number of events in these files). Raises ``ArchiveTooLarge``."""
        parts: list[ArchivePart] = []
        events = 0
        for first, last, count in self._ask(cursor, _EVENT_BOUNDS, size=EVENTS_PER_FILE):
            (high_depth, high), (low_depth, low) = first, last
            bounds = {"low_depth": -low_depth, "low": -low, "high_depth": -high_depth, "high": -high}
            parts.append(self._part(cursor, "event", _EVENTS, len(parts), bounds))
            events += count
        for number, (low, high) in enumerate(self._ask(cursor, _GROUP_BOUNDS, size=GROUPS_PER_FILE)):
            for table, query in (("group", _GROUPS), ("delta", _DELTAS)):
                parts.append(self._part(cursor, table, query, number, {"low": low, "high": high}))
        parts += [self._part(cursor, table, _SINGLE[table], 0, {}) for table in self._single]
        if len(parts) > MOST_FILES:  # before anything is written: no restore would take it
            raise ArchiveTooLarge(
                f"The archive would have {len(parts):,} files, and at most {MOST_FILES:,} can be restored. Archive the history "
                "before an earlier event, and delete it, several times. Nothing was written or deleted."
            )
        return parts, events

    def _ask(self, cursor: Any, query: str, **names: Any) -> list[Any]:
        cursor.execute(self._text(query), {**self._names, **names})
        found: list[Any] = cursor.fetchall()
        return found

    def _text(self, query: str) -> str:
        return query.replace("{reach}", _REACH).replace("{selected}", self._selected)

    def _part(self, cursor: Any, table: str, query: str, number: int, names: Mapping[str, Any]) -> ArchivePart:
        text = driver.with_values(cursor, self._text(query), {**self._names, **names})
        return ArchivePart(table, f"{table}-{number:05}.parquet", text)

    def _write(self, parts: Sequence[ArchivePart], events: int, snapshot: str) -> list[ArchivedFile]:
        """Writes the files, with Spark or in this process. Returns an ``ArchivedFile`` for each of ``parts``."""
        uses_spark = self._request.spark if self._request.spark is not None else events >= SPARK_EVENTS
        return (self._with_spark if uses_spark else self._in_process)(parts, snapshot)

    def _in_process(self, parts: Sequence[ArchivePart], snapshot: str) -> list[ArchivedFile]:
        files = []
        with (
            in_snapshot(driver.dsn(self._run.using), snapshot, _NAME) as cursor,
            self._run.stage("archive", len(parts), "files") as count,
        ):
            for part in parts:
                files.append(ArchivedFile(**write_part(cursor, str(self._folder), part)))
                count.add()
        return files

    def _with_spark(self, parts: Sequence[ArchivePart], snapshot: str) -> list[ArchivedFile]:
        """Writes each file in a Spark task. Reports as progress the number of files that are in the folder."""
        import json  # noqa: PLC0415 - travels with the task

        dsn, folder = driver.dsn(self._run.using), str(self._folder)

        def work(number: int) -> str:
            with in_snapshot(dsn, snapshot, _NAME) as cursor:
                return json.dumps(write_part(cursor, folder, parts[number]))

        written = lambda: len(list(self._folder.glob("*.parquet")))  # noqa: E731 - called from another thread
        with (
            site_session("archive", self._request.master) as spark,
            self._run.watch("archive", len(parts), "files", written),
            spark_steps(self._run, spark),
        ):
            return [ArchivedFile(**json.loads(answer)) for answer in run_tasks(spark, len(parts), work)]
