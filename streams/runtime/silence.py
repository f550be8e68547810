"""The time since the last sign of life of a process, by the database's clock (pure).

If that clock was set back, a sign of life may lie in the future. Its age is then unknown, so it counts as being as old
as it lies ahead. A living process gives its next sign within a second. A dead process would otherwise look alive until
the clock reaches the old time again.

These functions decide which processes are alive. Deletion by age uses the plain difference of times instead, because an
error there only keeps rows longer.
"""

from __future__ import annotations

from datetime import datetime

__all__ = ["silent_seconds", "silent_seconds_sql"]


def silent_seconds(now: datetime, heard_at: datetime) -> float:
    """Returns the seconds that have passed at ``now`` since the sign of life ``heard_at``."""
    return abs((now - heard_at).total_seconds())


def silent_seconds_sql(column: str) -> str:
    """Returns an SQL expression for the same, for a time in ``column``, by the clock at the moment of evaluation."""
    return f"abs(extract(epoch FROM clock_timestamp() - {column}))::float8"
