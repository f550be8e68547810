"""The database's clock, by which times are compared.

Clocks of hosts differ, by an hour if one was set wrong. A process that measures its own times uses ``time.monotonic`` and
passes on ages.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connections

__all__ = ["database_now"]


def database_now(using: str) -> datetime:
    """Returns the time of the database's clock. Raises ``django.db.Error`` if the database cannot be reached."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
