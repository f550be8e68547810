"""SQL on the rows of jobs, for queries of other packages (pure).

The table of jobs exists only if ``pipeline`` is installed.
"""

from __future__ import annotations

from streams.db.schema_mark import marked_lock

#: Running jobs whose lock is held by no session that may write jobs. A session that may only read could take the lock
#: too, but such a session does no work, so it does not count. ``pg_locks`` shows the 64-bit key of an advisory lock in
#: two halves, ``classid`` and ``objid``; ``objsubid`` 1 says that it is one such key and not a pair of keys.
KILLED_JOBS = f"""
SELECT id FROM pipeline_job job WHERE state = 'running' AND NOT EXISTS (
    SELECT FROM pg_locks held JOIN pg_stat_activity holder USING (pid)
    WHERE held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted
      AND has_table_privilege(holder.usesysid, 'pipeline_job', 'UPDATE')
      AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (held.classid::bigint << 32) | held.objid::bigint = {marked_lock("'replsite.job:' || job.id::text")}
)
"""
