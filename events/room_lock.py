"""Locks a room's row until the end of the transaction, in a transaction that sees what the lock's last holder committed.

Every change of a room is made under this lock, and all rows on which the change depends are read after the lock. At
READ COMMITTED, each statement after the lock sees what the last holder committed. At REPEATABLE READ, the snapshot may
be older than the lock. Example: A stores a redaction under the lock. B has its snapshot already, and waits for the lock
to store the event that A redacts. Then B does not see the redaction, and stores the event as not redacted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import InternalError, connections

from events.rows import CHANGE_ROOM, RoomRows, write
from streams.caches import append_invalidations
from streams.db import driver
from streams.db.snapshots import seeing_commits
from streams.errors import InTransaction

_SQLSTATE_TOO_LATE = "25001"


@contextmanager
def room_transaction(using: str, *, savepoint: bool = False) -> Iterator[bool]:
    """Runs the block in the caller's transaction, or else in a new one at READ COMMITTED (``seeing_commits``).

    The block may lock rooms. Without ``savepoint``, the caller's transaction can only be rolled back as a whole after an
    error. Raises ``InTransaction`` if it is at another isolation level.
    """
    try:
        with seeing_commits(using, savepoint=savepoint) as is_new:
            yield is_new
    except InternalError as error:
        if driver.sqlstate(error) != _SQLSTATE_TOO_LATE:
            raise
        raise InTransaction(
            "The caller's transaction is at an isolation level above READ COMMITTED (repeatable read or serializable), which "
            "hides what others store in the room meanwhile. Call this in a transaction at READ COMMITTED, or outside of any."
        ) from error


@contextmanager
def changing_room(room_id: str, using: str, lock: str = CHANGE_ROOM) -> Iterator[tuple[Any, RoomRows]]:
    """Locks a room in a ``room_transaction``. Yields a cursor, and rows that are written at the end of the block.

    Facts of ``caches`` come last, because readers of this stream wait for their positions until the transaction ends.
    """
    with room_transaction(using), connections[using].cursor() as cursor:
        cursor.execute(lock, [room_id])
        rows = RoomRows()
        yield cursor, rows
        write(cursor, rows)
        append_invalidations(rows.stale, using)
