"""For how long somebody has shown no sign of life, by the database's clock (pure).

A sign of life that lies ahead of that clock is of before it was set back, and may be of any age: it counts as being as old as it
lies ahead. Who lives shows the next one within a second; who died before would look alive until the clock comes there again.

This is for telling who is alive. What is deleted because of its age goes by time that has passed: being wrong keeps it longer.
"""

from __future__ import annotations

from datetime import datetime

__all__ = ["silent_seconds", "silent_seconds_sql"]


def silent_seconds(now: datetime, heard_at: datetime) -> float:
    """Seconds of silence at ``now``, since a sign of life."""
    return abs((now - heard_at).total_seconds())


def silent_seconds_sql(column: str) -> str:
    """The same in SQL, by the time of the statement."""
    return f"abs(extract(epoch FROM clock_timestamp() - {column}))::float8"
