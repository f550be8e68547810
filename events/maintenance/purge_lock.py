"""The lock of a room's purge: no two sessions purge, archive, restore or compress a room at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from events.errors import PurgeRefused
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder
from streams.db.schema_mark import marked_lock

_LOCK = marked_lock("'replsite.purge:' || %s")
_ONLY_ONE = f"SELECT pg_try_advisory_lock({_LOCK})"
_KEY = f"SELECT {_LOCK}"
_GIVE_BACK = f"SELECT pg_advisory_unlock({_LOCK})"


@contextmanager
def purge_lock(room_id: str, using: str) -> Iterator[None]:
    """Holds a lock within the block, so that no other session purges the room.

    Raises ``PurgeRefused`` if another session holds the lock.
    """
    with (
        closing(driver.direct_connection(using, application_name="replsite purge")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(_ONLY_ONE, [room_id])
        if not cursor.fetchone()[0]:
            cursor.execute(_KEY, [room_id])
            holder = describe_lock_holder(cursor, cursor.fetchone()[0])
            raise PurgeRefused(f"{room_id} is being purged already{holder}; see manage.py jobs.")
        try:
            yield
        finally:
            # A purges and closes its connection, B asks for the lock at once. PostgreSQL may end A's session only after
            # that, and B would be refused. So A releases the lock before it closes. If the connection is lost, so is
            # the lock.
            with suppress(driver.DatabaseError):
                cursor.execute(_GIVE_BACK, [room_id])
