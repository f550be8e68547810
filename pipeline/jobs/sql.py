"""SQL about the rows of jobs that others put into queries of theirs (pure).

The table is only there where ``pipeline`` is installed.
"""

from __future__ import annotations

from streams.db.schema_mark import marked_lock

__all__ = ["KILLED_JOBS"]

#: Running jobs whose lock nobody holds. A lock's key is shown in two halves.
KILLED_JOBS = f"""
SELECT id FROM pipeline_job job WHERE state = 'running' AND NOT EXISTS (
    SELECT FROM pg_locks held
    WHERE held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted
      AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (held.classid::bigint << 32) | held.objid::bigint = {marked_lock("'replsite.job:' || job.id::text")}
)
"""
