"""The time since the last sign of life of a process, by the database's clock (pure).

If that clock was set back, a sign of life may lie in the future. Its distance from now then counts as its age: a sign
10 s ahead counts as 10 s old. A living process gives its next sign within a second, so its age is right again at once.
Without this rule, a dead process would look alive until the clock reaches the time of the sign again.

These functions decide which processes are alive. Deletion by age uses the plain difference of times instead, because an
error there only keeps rows longer.
"""

from __future__ import annotations

from datetime import datetime


def silent_seconds(now: datetime, seen_at: datetime) -> float:
    """Returns the seconds between the sign of life ``seen_at`` and ``now``, also if the sign lies in the future."""
    return abs((now - seen_at).total_seconds())


def silent_seconds_sql(column: str) -> str:
    """Returns an SQL expression for ``silent_seconds``.

    ``column`` holds the time of the sign of life. The present time is the database's clock when the row is read.
    """
    return f"abs(extract(epoch FROM clock_timestamp() - {column}))::float8"
