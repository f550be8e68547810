"""The database's clock, the one that times are compared by: clocks of hosts differ, by an hour when somebody set one wrong.

Whoever keeps a time of its own keeps ``time.monotonic`` and tells an age.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connections

__all__ = ["database_now"]


def database_now(using: str) -> datetime:
    """What time it is there. Raises ``django.db.Error`` when nobody can be asked."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
