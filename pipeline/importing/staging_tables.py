"""The tables of an import job: what it must still know when it is resumed. Needs no Django.

Most of what an import reads goes from its sources straight to the site's tables. What remains for the end of the job is
staged in tables: broken lines, and new events of rooms that exist. The ledger has the parts that were read and the packs
that were loaded. A task writes its rows and its row in the ledger in one transaction. If the task is repeated, it finds
this row and does nothing. So everything exists exactly once, however often Spark retries and however often the job is
resumed.

Each table belongs to one job, and the table's name has the number of the job. So a late task cannot write into another
job's tables, and the tables of a killed job are found by the prefix of their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline import connections
from streams.db.long_transactions import NO_LIMITS_IN_SESSION

__all__ = [
    "PREFIX",
    "count_lines",
    "create_staging",
    "drop_staging",
    "events_done",
    "finish_pack",
    "finish_part",
    "is_loaded",
    "is_pack_done",
    "leftover_staging",
    "lines_read",
    "order_known_events",
    "packs_done",
    "planned_packs",
    "staging_connection",
    "store_broken",
    "store_packs",
    "store_progress",
    "tables",
]

PREFIX = "pipeline_stage_"
MOST_QUARANTINED = 1_000_000
_CREATED = "created, format 5"
"""Ledger step, with the version of the staging format. Increase the number when the format changes. Then a job that an earlier
version began starts again."""
_PACKS, _ORDERED = "packs", "known events in order"


#: The ledger has one row for each part, pack or step that is finished. ``broken`` has lines that are not loaded, with the
#: reason, and ``event`` new events of existing rooms; ``source`` and ``line`` are the place in the input. ``known`` has the
#: order in which to store staged events that are not stored yet.
_TABLES = {
    "step": 'step text COLLATE "C" PRIMARY KEY, lines bigint, pack int, events bigint, about jsonb',
    "broken": "source bigint, line bigint, reason text, detail text, head bytea",
    "event": "source bigint, line bigint, room_id text, room_version text, event_id text, stream_ordering bigint, "
    "outlier boolean, rejected_reason text, soft_failed boolean, json bytea, PRIMARY KEY (source, line)",
    "known": "place bigint PRIMARY KEY, source bigint, line bigint, backward boolean",
}

#: History comes first, from its newest event.
_ORDER_KNOWN = """
INSERT INTO {known} (place, source, line, backward)
SELECT row_number() OVER (
    ORDER BY NOT backward, CASE WHEN backward THEN stream_ordering END DESC NULLS FIRST,
        CASE WHEN backward THEN source END DESC, CASE WHEN backward THEN line END DESC,
        stream_ordering NULLS LAST, source, line
), source, line, backward
FROM (SELECT *, %s OR coalesce(stream_ordering < 0, false) AS backward FROM {event}) AS staged
"""
_STORE_BROKEN = """
INSERT INTO pipeline_quarantinedline (job_id, file, line, reason, detail, content)
SELECT %(job)s, s.name, b.line, b.reason, coalesce(b.detail, ''),
       coalesce(b.head, '')
FROM {broken} b JOIN unnest(%(names)s::text[]) WITH ORDINALITY AS s(name, number) ON s.number - 1 = b.source
ORDER BY b.source, b.line LIMIT %(most)s
"""


def tables(job: int) -> Mapping[str, str]:
    """Returns the names of a job's staging tables: short name -> table's name."""
    return {name: f"{PREFIX}{job}_{name}" for name in _TABLES}


@contextmanager
def staging_connection(dsn: str) -> Iterator[Any]:
    """Yields a connection for a task, in a transaction that commits at the end of the block.

    The session has no timeouts, because a task may compute for long between its statements.
    """
    connection = connections.connect(dsn, "replsite spark staging")
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(NO_LIMITS_IN_SESSION)
        with connection:
            yield connection
    finally:
        connection.close()


# --- tables -----------------------------------------------------------------------------------------------------------


def create_staging(cursor: Any, job: int, signatures: str = "trusted") -> None:
    """Creates the job's staging tables. Does nothing if the tables exist and the ledger has a matching row.

    The row does not match if another version of this program filled the tables, or if the events were verified with other
    keys (``signatures``). Then the tables are dropped and created again.
    """
    created = f"{_CREATED}, signatures {signatures}"
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [tables(job)["step"]])
    if cursor.fetchone()[0] and _about(cursor, job, created) is not None:
        return
    drop_staging(cursor, [job])
    for name, table in tables(job).items():
        cursor.execute(f"CREATE TABLE {table} ({_TABLES[name]})")
    _finish_step(cursor, job, created, {})


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


# --- ledger -----------------------------------------------------------------------------------------------------------


def finish_part(cursor: Any, job: int, part: int) -> bool:
    """Records that a part is read. Returns false if it is recorded already.

    Attempts A and B of one task: B's insert waits for A's transaction. If A commits, B finds the row. If A fails, its rows
    and its ledger row are rolled back together, and B's insert succeeds.
    """
    sql = "INSERT INTO {step} (step, lines) VALUES (%s, 0) ON CONFLICT DO NOTHING"
    cursor.execute(sql.format(**tables(job)), [f"part {part}"])
    return bool(cursor.rowcount)


def count_lines(cursor: Any, job: int, part: int, lines: int) -> None:
    """Records the number of lines of a part."""
    cursor.execute("UPDATE {step} SET lines = %s WHERE step = %s".format(**tables(job)), [lines, f"part {part}"])


def finish_pack(cursor: Any, job: int, pack: int, events: int) -> bool:
    """Records that a pack is loaded, as ``finish_part`` does for parts. ``events`` is the number of its events."""
    sql = "INSERT INTO {step} (step, pack, events) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
    cursor.execute(sql.format(**tables(job)), [f"pack {pack}", pack, events])
    is_first = bool(cursor.rowcount)
    cursor.execute("DELETE FROM {step} WHERE step = %s".format(**tables(job)), [f"in pack {pack}"])
    return is_first


def store_progress(cursor: Any, job: int, pack: int, events: int) -> None:
    """Records how many events of a pack are computed. They count half until the pack is loaded."""
    sql = "INSERT INTO {step} (step, events) VALUES (%s, %s) ON CONFLICT (step) DO UPDATE SET events = excluded.events"
    cursor.execute(sql.format(**tables(job)), [f"in pack {pack}", events // 2])


def is_pack_done(cursor: Any, job: int, pack: int) -> bool:
    """Returns true if a pack is loaded."""
    cursor.execute("SELECT EXISTS (SELECT FROM {step} WHERE step = %s)".format(**tables(job)), [f"pack {pack}"])
    return bool(cursor.fetchone()[0])


def packs_done(cursor: Any, job: int) -> list[int]:
    """Returns the numbers of the packs that are loaded."""
    cursor.execute("SELECT pack FROM {step} WHERE pack IS NOT NULL".format(**tables(job)))
    return [int(pack) for (pack,) in cursor.fetchall()]


def store_packs(cursor: Any, job: int, packs: Mapping[str, Any]) -> None:
    """Records how the rooms are divided into packs, which never changes while the job is resumed."""
    _finish_step(cursor, job, _PACKS, packs)


def planned_packs(cursor: Any, job: int) -> Mapping[str, Any] | None:
    """Returns the packs that ``store_packs`` has recorded. They are recorded after all parts were read."""
    return _about(cursor, job, _PACKS)


def lines_read(cursor: Any, job: int) -> int:
    """Returns the number of lines in the parts that are read."""
    cursor.execute("SELECT coalesce(sum(lines), 0) FROM {step}".format(**tables(job)))
    return int(cursor.fetchone()[0])


def events_done(cursor: Any, job: int) -> int:
    """Returns how many events are done, for the progress."""
    cursor.execute("SELECT coalesce(sum(events), 0) FROM {step}".format(**tables(job)))
    return int(cursor.fetchone()[0])


def _finish_step(cursor: Any, job: int, step: str, about: Mapping[str, Any]) -> None:
    sql = "INSERT INTO {step} (step, about) VALUES (%s, %s::jsonb)"
    cursor.execute(sql.format(**tables(job)), [step, json.dumps(about)])


def _about(cursor: Any, job: int, step: str) -> Mapping[str, Any] | None:
    """Returns what the ledger has about a step, or None if the step is not finished."""
    cursor.execute("SELECT about::text FROM {step} WHERE step = %s".format(**tables(job)), [step])
    found = cursor.fetchone()
    return None if found is None else json.loads(found[0])


# --- what is left for the end of the job ------------------------------------------------------------------------------


def is_loaded(cursor: Any, job: int) -> bool:
    """Returns true if all packs are loaded, and the staged events are in order."""
    return _about(cursor, job, _ORDERED) is not None


def order_known_events(cursor: Any, job: int, *, as_history: bool) -> None:
    """Puts the staged events into the order in which they are to be stored. Needs an open transaction.

    All packs must be loaded already.
    """
    cursor.execute(_ORDER_KNOWN.format(**tables(job)), [as_history])
    cursor.execute("ANALYZE {event} (source, line)".format(**tables(job)))
    cursor.execute("ANALYZE {known}".format(**tables(job)))
    _finish_step(cursor, job, _ORDERED, {})


def store_broken(cursor: Any, job: int, names: Sequence[str]) -> int:
    """Replaces the job's rows in the table of quarantined lines. Returns the number of broken lines.

    ``names`` has the name of each source. At most ``MOST_QUARANTINED`` broken lines are stored, but all are counted.
    """
    cursor.execute("DELETE FROM pipeline_quarantinedline WHERE job_id = %s", [job])
    values = {"job": job, "names": list(names), "most": MOST_QUARANTINED}
    cursor.execute(_STORE_BROKEN.format(**tables(job)), values)
    cursor.execute("SELECT count(*) FROM {broken}".format(**tables(job)))
    return int(cursor.fetchone()[0])
