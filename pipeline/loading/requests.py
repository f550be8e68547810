"""Has the SQL with which a task requests the stream IDs of a pack and the driver answers. Needs no Django.

A task inserts a row with the number of its transaction, and with the number of IDs of each stream that it needs. The
job's process looks for new rows twenty times a second, reserves the IDs, and stores them in the row. So a task waits
some hundredths of a second. This is little, because a pack takes about a second. While a task waits for IDs, it does
not delay readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ANSWER",
    "ASK",
    "CLEAR",
    "CLEAR_ALL",
    "CLEAR_OTHERS",
    "LOOK",
    "LOOK_SECONDS",
    "READ_ANSWER",
    "WRITER",
    "ids_of_runs",
    "runs",
]

LOOK_SECONDS = 0.05
"""Seconds after which the job's process looks for requests again."""

# --- the task's side --------------------------------------------------------------------------------------------------

#: Selects the writer's lease, and true if the writer answers requests: the session that holds its name still exists, and
#: has sent a heartbeat. PIDs are reused. So a session that began after the name was taken does not hold it. Before the first
#: heartbeat, the writer waits for the transactions that hold its append lock: a task that waited for it would hold it up.
#: Parameter: the writer's name.
WRITER = """
SELECT lease, i.heartbeat_at > i.started_at AND EXISTS (
    SELECT FROM pg_stat_activity a
    WHERE a.pid = i.lock_backend_pid AND coalesce(a.backend_start <= i.started_at, true)
) FROM streams_instance i WHERE name = %s
"""
#: Inserts a request. Overwrites a row with the same transaction number: such a row is from a restored backup, and was
#: written on another database server.
ASK = """
INSERT INTO pipeline_packrequest (transaction, job_id, writer, lease, counts)
VALUES (%(transaction)s, %(job)s, %(writer)s, %(lease)s, %(counts)s)
ON CONFLICT (transaction) DO UPDATE
SET job_id = excluded.job_id, writer = excluded.writer, lease = excluded.lease, counts = excluded.counts,
    ids = NULL, refused = NULL
"""
READ_ANSWER = "SELECT ids, refused FROM pipeline_packrequest WHERE transaction = %s AND job_id = %s"

# --- the side of the job's process ------------------------------------------------------------------------------------

#: Selects the requests of a job to a writer. The last column is true if the transaction has ended. A number above all that the
#: server has given out counts as not ended: it comes from a restored backup, or is that of a transaction that has just begun.
LOOK = """
SELECT transaction, lease, counts, ids IS NOT NULL OR refused IS NOT NULL, CASE
    WHEN transaction::text::xid8 < pg_snapshot_xmax(pg_current_snapshot())
    THEN pg_xact_status(transaction::text::xid8) IS DISTINCT FROM 'in progress' ELSE false END
FROM pipeline_packrequest WHERE job_id = %s AND writer = %s ORDER BY asked_at
"""
ANSWER = "UPDATE pipeline_packrequest SET ids = %s, refused = %s WHERE transaction = %s"
CLEAR = "DELETE FROM pipeline_packrequest WHERE transaction = ANY(%s)"
CLEAR_ALL = "DELETE FROM pipeline_packrequest WHERE job_id = %s AND writer = %s"
#: Deletes the requests to the writers of earlier runs of the job, which no process answers any more.
CLEAR_OTHERS = "DELETE FROM pipeline_packrequest WHERE job_id = %s AND writer <> %s"


def runs(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Divides ascending IDs into intervals of consecutive IDs (runs). Returns (first, last) of each run."""
    found: list[tuple[int, int]] = []
    begin = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            found.append((ids[begin], ids[at - 1]))
            begin = at
    return found


def ids_of_runs(given: Mapping[str, Iterable[Sequence[int]]]) -> dict[str, list[int]]:
    """Returns stream -> IDs in an answer. ``given`` maps each stream to the runs of its IDs, as ``runs`` returns them."""
    return {
        stream: [number for first, last in some for number in range(first, last + 1)] for stream, some in given.items()
    }
