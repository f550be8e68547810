"""Begins a new generation of a stream in memory, when a writer enters the stream while no other writer lives."""

from __future__ import annotations

from typing import Any

from streams.core.bound import BoundStream
from streams.core.declaration import quoted

__all__ = ["begin_generation"]

#: Seconds to wait for a locked row. There is a limit because the transaction that locks the row may be waiting for this one.
LOCK_SECONDS = 10


def begin_generation(cursor: Any, stream: BoundStream) -> None:
    """Restarts a stream in memory at 0: deletes its facts, resets its positions and sequence, and raises its generation.

    Must be called in the transaction in which a writer enters, while no other writer lives. A reader that sees the new
    generation knows that lower positions are correct. The reader notices the restart even if the new positions have already
    risen above the old ones.
    """
    # A crash must not undo a generation that readers have seen. Otherwise the next generation would have the same number, and
    # its facts the same IDs.
    cursor.execute(f"SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    for table in stream.declaration.tables:
        cursor.execute(f"DELETE FROM {quoted(table.name)}")
    cursor.execute("SELECT setval(%s, 1, false)", [stream.declaration.sequence])
    cursor.execute(
        "UPDATE streams_streamposition SET position = 0, last_write_position = NULL, generation = generation + 1, "
        "last_advance_at = clock_timestamp(), updated_at = clock_timestamp() WHERE stream = %s",
        [stream.name],
    )
    for forget in stream.when_begun_anew:
        forget(cursor)
