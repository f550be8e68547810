"""A stream that lives in memory begins anew when a writer enters it and no other lives."""

from __future__ import annotations

from typing import Any

from streams.core.bound import BoundStream

__all__ = ["begin_anew"]

#: A new life gives up when rows that it deletes are locked for so long: perhaps by who waits for it.
LOCK_SECONDS = 10


def begin_anew(cursor: Any, stream: BoundStream) -> None:
    """A stream in memory starts at 0 again: no facts, no position, another generation.

    Called in the transaction in which a writer enters, when no other lives. Whoever sees the new generation
    knows that lower positions are no mistake, also when the writer has come far already.
    """
    # A crash must not take back a life that others heard of: the next one would have its number, and its IDs again.
    cursor.execute(f"SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    for table in stream.declaration.tables:
        cursor.execute(f"DELETE FROM {table.name}")
    cursor.execute("SELECT setval(%s, 1, false)", [stream.declaration.sequence])
    cursor.execute(
        "UPDATE streams_streamposition SET position = 0, last_write_position = NULL, generation = generation + 1, "
        "last_advance_at = clock_timestamp(), updated_at = clock_timestamp() WHERE stream = %s",
        [stream.name],
    )
    for forget in stream.when_begun_anew:
        forget(cursor)
