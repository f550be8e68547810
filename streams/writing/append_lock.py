"""The append lock of a writer: shows that a transaction that appends as this writer is open.

Each appending transaction takes the lock in shared mode, and then reads the lease. A process that takes the writer's
name, or retires the writer, raises the lease, commits that, and then looks in ``pg_locks`` for holders. If the process
finds no holder, no transaction of the old lease is open, and no such transaction will get an ID: a transaction that
takes the lock after this look reads the new lease.

Nothing waits for the lock, because every role that may connect can hold every advisory lock, and ``pg_locks`` shows the
keys.

* If a transaction does not get the lock at once, it takes another lock of the same writer (``TAKE_ANOTHER``). This lock
  has a random number that no other session can foresee.
* A holder whose role may not insert into any of our tables is not counted.

Older processes get the lock in exclusive mode before they raise the lease. So an append does wait while a session that
may append holds the lock exclusively.
"""

from __future__ import annotations

from typing import Any

__all__ = ["HELD_HERE", "HOLDERS", "TAKE", "TAKE_ANOTHER", "is_held"]

#: Takes the lock for the rest of the transaction, if it is free. The result is kept in a setting of the transaction, which a
#: rollback to a savepoint reverts, as it releases the lock. Parameter: the lock's key.
TAKE = "SELECT set_config('replsite.append_lock', pg_try_advisory_xact_lock_shared(%(key)s::bigint)::text, true)"
#: SQL condition for a later statement of the same transaction: the lock is held. Null if the transaction never took it.
HELD_HERE = "current_setting('replsite.append_lock', true) = 'true'"

_HERE = "l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
_THE_LOCK = "l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = %(key)s::bigint"
#: The other locks of the writer have two numbers: the lower half of the key, and the random one.
_OTHER_LOCKS = "l.objsubid = 2 AND l.classid::bigint = (%(key)s::bigint & 4294967295)"
#: The role that holds the lock ``l``. A prepared transaction has no session, but an owner. Its number is that of the lock that
#: it holds on itself.
_ROLE = """
coalesce(a.usesysid, (
    SELECT r.oid FROM pg_locks own
        JOIN pg_prepared_xacts x ON x.transaction = own.transactionid JOIN pg_roles r ON r.rolname = x.owner
    WHERE l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid' AND own.mode = 'ExclusiveLock'
      AND own.virtualtransaction = l.virtualtransaction LIMIT 1
))
"""
#: SQL condition on a lock ``l``: the role of the lock's holder, or a role that it may become, may insert into one of our tables.
#: Also true if the role is not known, because the holder's session is ending.
_MAY_APPEND = f"""
EXISTS (
    SELECT FROM (SELECT {_ROLE} AS role) AS holder
    WHERE holder.role IS NULL OR EXISTS (
        SELECT FROM pg_roles r, pg_class p
            JOIN pg_class t ON t.relnamespace = p.relnamespace AND t.relowner = p.relowner AND t.relkind IN ('r', 'p')
        WHERE p.oid = 'streams_streamposition'::regclass AND pg_has_role(holder.role, r.oid, 'MEMBER')
          AND has_any_column_privilege(r.oid, t.oid, 'INSERT')
    )
)
"""

#: Takes another lock of the writer, unless the transaction has one. Parameter: the key of the append lock.
TAKE_ANOTHER = f"""
SELECT set_config('replsite.append_lock', 'true', true), CASE
    WHEN EXISTS (SELECT FROM pg_locks l WHERE {_HERE} AND {_OTHER_LOCKS} AND l.pid = pg_backend_pid()) THEN NULL
    WHEN EXISTS (
        SELECT FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE {_HERE} AND {_THE_LOCK} AND l.mode = 'ExclusiveLock' AND {_MAY_APPEND}
    ) THEN pg_advisory_xact_lock_shared(%(key)s::bigint)::text
    ELSE pg_advisory_xact_lock_shared(
        %(key)s::bigint::bit(32)::int, ('x' || right(gen_random_uuid()::text, 8))::bit(32)::int
    )::text
END
"""

#: SQL condition for the locks ``l`` of other transactions, whoever holds them. Parameter: the key of the append lock.
_OF_OTHERS = f"""
{_HERE} AND l.mode = 'ShareLock' AND ({_THE_LOCK} OR {_OTHER_LOCKS}) AND l.pid IS DISTINCT FROM pg_backend_pid()
"""
#: FROM and WHERE of a statement about the locks ``l`` of open transactions that append as a writer, and their sessions ``a``.
#: A prepared transaction has no session. Parameter: the key of the append lock.
HOLDERS = f"FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE {_OF_OTHERS} AND {_MAY_APPEND}"


def is_held(cursor: Any, key: int) -> bool:
    """Returns true if a transaction that appends as the writer is open. ``key`` is the key of its append lock."""
    # In most cases no session holds the lock, and one cheap query shows this. ``HOLDERS`` also examines the rights of a holder.
    # To plan that query takes a new session longer than all other work when a writer starts.
    for held in (f"FROM pg_locks l WHERE {_OF_OTHERS}", HOLDERS):
        cursor.execute(f"SELECT EXISTS (SELECT {held})", {"key": key})
        if not cursor.fetchone()[0]:
            return False
    return True
