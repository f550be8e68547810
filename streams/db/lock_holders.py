"""Describes the session that holds an advisory lock, for messages."""

from __future__ import annotations

from typing import Any

from streams.db import driver

_HOLDER = f"""
SELECT a.pid, coalesce(host(a.client_addr), 'local'), a.application_name, a.state, a.xact_start, a.usename
{driver.LOCK_HOLDERS} LIMIT 1
"""


def describe_lock_holder(cursor: Any, key: int) -> str:
    """Describes the session that holds a lock, as a text for a message. Returns an empty text if the lock is free.

    The text is `` (database session PID from ADDRESS, APPLICATION, STATE)``. PostgreSQL hides the address and state of
    another role's session. For such a session the text is `` (database session PID of role ROLE)``.
    """
    cursor.execute(_HOLDER, [key])
    row = cursor.fetchone()
    if row is None:
        return ""
    if row[0] is None:
        return " (a prepared transaction, which ROLLBACK PREPARED ends, or a session that is ending)"
    if row[3] is None:
        return f" (database session {row[0]} of role {row[5]})"
    since = f", transaction open since {row[4]:%H:%M:%S}" if row[4] else ""
    return f" (database session {row[0]} from {row[1]}, {row[2]!r}, {row[3]}{since})"
