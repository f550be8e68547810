"""SQL on the rows of jobs for queries of other packages (pure).

The table exists only where ``pipeline`` is installed.
"""

from __future__ import annotations

from streams.db.schema_mark import marked_lock

__all__ = ["KILLED_JOBS"]

#: Running jobs whose lock no session holds. ``pg_locks`` shows the 64-bit key of an advisory lock in two halves, ``classid`` and
#: ``objid``; ``objsubid`` 1 says that it is one such key and not a pair of keys.
KILLED_JOBS = f"""
SELECT id FROM pipeline_job job WHERE state = 'running' AND NOT EXISTS (
    SELECT FROM pg_locks held
    WHERE held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted
      AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (held.classid::bigint << 32) | held.objid::bigint = {marked_lock("'replsite.job:' || job.id::text")}
)
"""
