"""The clock of the database, which is used wherever times of several processes are compared.

The clocks of hosts differ, by an hour if a clock was set wrong. A process therefore measures its own durations with
``time.monotonic``, and sends ages instead of times.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connections


def database_now(using: str) -> datetime:
    """Returns the time of the database's clock. Raises ``django.db.Error`` if the database cannot be reached."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
