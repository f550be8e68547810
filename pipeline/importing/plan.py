"""Plans an import after its events are staged: selects the new events, and numbers the rooms to compute.

The plan is made by SQL over whole staging tables, in one transaction with a row in the ledger. So when a job is
resumed, the plan is either complete or not begun.

Runs in Spark's driver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.frames.sources.parts import HEAD_BYTES, Part, lines_before
from pipeline.frames.work_out_rooms import VERSION_DIFFERS
from pipeline.importing.stage_lines import LINES_PER_PART
from pipeline.importing.staging_tables import (
    BROKEN,
    PREFIX,
    ROOMY,
    STAGED_EVENTS,
    STAGED_TABLES,
    STEPS,
    VERSIONS,
    WORKING,
    table_name,
)

__all__ = [
    "PlannedRoom",
    "create_staging",
    "drop_staging",
    "events_done",
    "leftover_staging",
    "make_plan",
    "planned_rooms",
    "quarantine_rooms",
    "store_broken",
    "store_versions",
]

ROOM_KNOWN = "room-known"
ROOM_PURGED = "room-purged"
MOST_QUARANTINED = 1_000_000
_CREATED = "created, format 4"
"""Ledger step, with the version of the staging format. Increase the number when the format changes. Then a job that an earlier
version staged starts again."""
_PLANNED = "planned"

#: Selects each event once. Of several lines with the same event ID, a line that is no outlier wins over an outlier,
#: then a line with a matching content hash over one without, then the first line. Events that are stored are left out.
#: But a stored outlier can become a full event of the same room.
_KEEP_NEW = """
CREATE UNLOGGED TABLE {new} AS
SELECT DISTINCT ON (e.event_id) e.seq, e.event_id, e.room_id, e.room_version, e.type, e.stream_ordering
FROM {event} e
WHERE NOT EXISTS (
    SELECT FROM events_event known
    WHERE known.event_id = e.event_id AND (e.outlier OR NOT known.outlier OR known.room_id <> e.room_id)
)
ORDER BY e.event_id, e.outlier, NOT e.content_hash_matches, e.seq
"""
#: A room has one version: that of its create event. Without a create event, it is the version that most of its events
#: state.
_OTHER_VERSIONS = """
WITH counted AS (
    SELECT room_id, room_version, count(*) AS events, bool_or(type = 'm.room.create') AS creates
    FROM {new} GROUP BY room_id, room_version
), chosen AS (
    SELECT DISTINCT ON (room_id) room_id, room_version
    FROM counted ORDER BY room_id, creates DESC, events DESC, room_version
), taken AS (
    DELETE FROM {new} k USING chosen c
    WHERE k.room_id = c.room_id AND k.room_version <> c.room_version
    RETURNING k.seq, k.room_version, c.room_version AS room_has, k.room_id
)
INSERT INTO {broken} (seq, reason, detail)
SELECT seq, %(reason)s, 'said to be of version ' || room_version || ', but room ' || room_id || ' has version ' || room_has
FROM taken
"""
#: New events of existing rooms, in the order in which to store them: history first, from its newest event.
_KNOWN_ROOMS = """
WITH taken AS (
    DELETE FROM {new} k USING events_room r WHERE k.room_id = r.room_id RETURNING k.seq, k.stream_ordering
), told AS (
    SELECT seq, stream_ordering, %(as_history)s OR coalesce(stream_ordering < 0, false) AS backward FROM taken
)
INSERT INTO {known} (place, seq, backward)
SELECT row_number() OVER (
    ORDER BY NOT backward, CASE WHEN backward THEN stream_ordering END DESC NULLS FIRST,
        CASE WHEN backward THEN seq END DESC, stream_ordering NULLS LAST, seq
), seq, backward FROM told
"""
#: New events of rooms that were created while this job ran, that are still being purged, or that are blocked.
_GIVE_UP = """
WITH taken AS (
    DELETE FROM {kept} k WHERE k.room_id = ANY(%(rooms)s) RETURNING k.seq, k.room_id, k.event_id
)
INSERT INTO {broken} (seq, reason, detail)
SELECT seq,
    CASE WHEN is_here THEN %(known)s ELSE %(purged)s END,
    CASE WHEN is_here THEN 'room ' || room_id || ' came to be while this import worked; import it again'
        ELSE 'room ' || room_id || ' was purged and is blocked (manage.py purge room --unblock), or is not gone yet' END
FROM (SELECT *, EXISTS (SELECT FROM events_room r WHERE r.room_id = taken.room_id) AS is_here FROM taken) AS taken
WHERE NOT EXISTS (SELECT FROM events_event known WHERE known.event_id = taken.event_id)
"""
_ROOMS = """
CREATE UNLOGGED TABLE {room} AS
SELECT row_number() OVER (ORDER BY min(stream_ordering) NULLS LAST, min(seq)) AS room_no, room_id, count(*) AS events
FROM {new} GROUP BY room_id
"""
#: Physically sorted: the rows of a room are adjacent, in their order.
_KEEP_IN_ORDER = """
CREATE UNLOGGED TABLE {kept} AS
SELECT k.*, r.room_no FROM {new} k JOIN {room} r USING (room_id)
ORDER BY r.room_no, k.stream_ordering NULLS LAST, k.seq
"""
_NOT_LOADED = """
SELECT room_no, room_id, events FROM {room} r
WHERE NOT EXISTS (SELECT FROM pipeline_importedroom done WHERE done.job_id = %s AND done.room_id = r.room_id)
ORDER BY room_no
"""
#: Of rooms that are loaded, all events count. Of others, those for which event auth is done count half.
_EVENTS_DONE = """
SELECT coalesce(sum(CASE WHEN done.room_id IS NULL THEN w.events / 2 ELSE r.events END), 0)
FROM {room} r LEFT JOIN {working} w USING (room_no)
LEFT JOIN pipeline_importedroom done ON done.job_id = %s AND done.room_id = r.room_id
"""
_STORE_BROKEN = """
INSERT INTO pipeline_quarantinedline (job_id, file, line, reason, detail, content)
SELECT %(job)s, p.path, p.lines_before + b.seq %% %(lines_per_part)s, b.reason, coalesce(b.detail, ''),
       coalesce(nullif(b.head, ''), substring(e.json FROM 1 FOR %(head)s), '')
FROM {broken} b
JOIN unnest(%(paths)s::text[], %(before)s::bigint[]) WITH ORDINALITY AS p(path, lines_before, place)
     ON p.place - 1 = b.seq / %(lines_per_part)s
LEFT JOIN {event} e ON e.seq = b.seq
ORDER BY b.seq LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class PlannedRoom:
    """A room to compute. ``room_no`` is the room's number in the job."""

    room_no: int
    room_id: str
    events: int


def _named(sql: str, job: int) -> str:
    names = ("new", "kept", "known", "room", STAGED_EVENTS.name, BROKEN.name, WORKING.name)
    tables = {name: table_name(job, name) for name in names}
    return sql.format(**tables)


def create_staging(cursor: Any, job: int, signatures: str = "trusted") -> None:
    """Creates the job's staging tables. Does nothing if the tables exist and the ledger has a matching row.

    The row in the ledger is missing if PostgreSQL emptied the tables after a crash. The row does not match if another
    version of this program filled the tables, or if the staged events were verified with other keys (``signatures``).
    In all these cases the tables are dropped and created again.
    """
    created = f"{_CREATED}, signatures {signatures}"
    if _step_done(cursor, job, created):
        return
    drop_staging(cursor, [job])
    for table in STAGED_TABLES:
        cursor.execute(table.ddl(job))
    _step(cursor, job, created)


def drop_staging(cursor: Any, jobs: Sequence[int]) -> None:
    """Drops all staging tables of these jobs."""
    for job in jobs:
        cursor.execute(
            "SELECT tablename FROM pg_tables WHERE starts_with(tablename, %s) AND schemaname = current_schema()",
            [f"{PREFIX}{job}_"],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP TABLE IF EXISTS "{name}"')


def leftover_staging(cursor: Any, kind: str) -> list[int]:
    """Returns the IDs of jobs of a kind that are done or cancelled and still have staging tables.

    For instance, a job keeps its staging tables if it is cancelled after its process was killed.
    """
    cursor.execute(
        """
        SELECT DISTINCT job.id FROM pg_tables
        JOIN pipeline_job job ON starts_with(tablename, %s || job.id || '_')
        WHERE schemaname = current_schema() AND starts_with(tablename, %s)
          AND job.kind = %s AND job.state IN ('done', 'cancelled')
        """,
        [PREFIX, PREFIX, kind],
    )
    return [int(job) for (job,) in cursor.fetchall()]


def store_versions(cursor: Any, job: int, versions: Mapping[str, str]) -> None:
    """Stores the room versions that create events announce. ``versions`` maps room IDs to versions.

    If a version of a room is stored already, it is not changed.
    """
    cursor.execute(
        f"INSERT INTO {table_name(job, VERSIONS.name)} (room_id, room_version) "
        "SELECT * FROM unnest(%s::text[], %s::text[]) ON CONFLICT DO NOTHING",
        [list(versions), list(versions.values())],
    )


def make_plan(cursor: Any, job: int, *, as_history: bool) -> None:
    """Selects the new events, puts new events of existing rooms into a separate table, and numbers the new rooms.

    All lines must be staged already. Needs an open transaction. Does nothing if the job has a plan already.
    """
    if _step_done(cursor, job, _PLANNED):
        return
    cursor.execute(ROOMY)
    cursor.execute(f"CREATE UNIQUE INDEX ON {table_name(job, STAGED_EVENTS.name)} (seq)")
    cursor.execute(f"ANALYZE {table_name(job, STAGED_EVENTS.name)} (seq, event_id)")
    cursor.execute(_named(_KEEP_NEW, job))
    cursor.execute(_named(_OTHER_VERSIONS, job), {"reason": VERSION_DIFFERS})
    cursor.execute(
        _named("CREATE UNLOGGED TABLE {known} (place bigint PRIMARY KEY, seq bigint, backward boolean)", job)
    )
    cursor.execute(_named(_KNOWN_ROOMS, job), {"as_history": as_history})
    cursor.execute(_named(_ROOMS, job))
    cursor.execute(_named(_KEEP_IN_ORDER, job))
    cursor.execute(_named("DROP TABLE {new}", job))
    cursor.execute(_named("CREATE INDEX ON {kept} (room_no)", job))
    cursor.execute(_named("ANALYZE {kept} (room_no)", job))
    _step(cursor, job, _PLANNED)


def planned_rooms(cursor: Any, job: int) -> list[PlannedRoom]:
    """Returns the rooms of the plan that are not loaded yet, in the order of their numbers."""
    cursor.execute(_named(_NOT_LOADED, job), [job])
    return [PlannedRoom(*row) for row in cursor.fetchall()]


def events_done(cursor: Any, job: int) -> int:
    """Returns how many events of the planned rooms are done, for the progress."""
    cursor.execute(_named(_EVENTS_DONE, job), [job])
    return int(cursor.fetchone()[0])


def quarantine_rooms(cursor: Any, job: int, rooms: Collection[str]) -> None:
    """Puts the new events of ``rooms`` into the quarantine. These rooms could not be loaded.

    A room cannot be loaded if another process has created the room since the plan was made, if another process is
    purging the room, or if the room is blocked.
    """
    cursor.execute(_named(_GIVE_UP, job), {"known": ROOM_KNOWN, "purged": ROOM_PURGED, "rooms": list(rooms)})


def store_broken(cursor: Any, job: int, parts: Sequence[Part], lines: Sequence[int]) -> int:
    """Replaces the job's rows in the table of quarantined lines. Returns the number of broken lines.

    ``lines`` holds the number of lines of each part, from which the line number within the file is computed. At most
    ``MOST_QUARANTINED`` broken lines are stored, but all broken lines are counted.
    """
    cursor.execute("DELETE FROM pipeline_quarantinedline WHERE job_id = %s", [job])
    cursor.execute(
        _named(_STORE_BROKEN, job),
        {
            "job": job,
            "lines_per_part": LINES_PER_PART,
            "head": HEAD_BYTES,
            "paths": [part.name for part in parts],
            "before": lines_before(parts, lines),
            "most": MOST_QUARANTINED,
        },
    )
    cursor.execute(_named("SELECT count(*) FROM {broken}", job))
    return int(cursor.fetchone()[0])


def _step(cursor: Any, job: int, step: str) -> None:
    cursor.execute(f"INSERT INTO {table_name(job, STEPS.name)} (step) VALUES (%s)", [step])


def _step_done(cursor: Any, job: int, step: str) -> bool:
    name = table_name(job, STEPS.name)
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
    if not cursor.fetchone()[0]:
        return False
    cursor.execute(f"SELECT EXISTS (SELECT FROM {name} WHERE step = %s)", [step])
    return bool(cursor.fetchone()[0])
