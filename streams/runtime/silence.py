"""The time since the last sign of life of a process, by the database's clock (pure).

A sign of life may lie ahead of that clock, if the clock was set back after it. Its age is unknown, so it counts as being
as old as it lies ahead. A living process gives the next sign within a second. A dead one would otherwise look alive until
the clock reaches that time again.

This is for deciding who is alive. Deletion by age uses the time that has passed instead: an error there only keeps rows
longer.
"""

from __future__ import annotations

from datetime import datetime

__all__ = ["silent_seconds", "silent_seconds_sql"]


def silent_seconds(now: datetime, heard_at: datetime) -> float:
    """Returns the seconds of silence at ``now`` since a sign of life."""
    return abs((now - heard_at).total_seconds())


def silent_seconds_sql(column: str) -> str:
    """Returns the same as a SQL expression, by the clock at the time of the statement."""
    return f"abs(extract(epoch FROM clock_timestamp() - {column}))::float8"
