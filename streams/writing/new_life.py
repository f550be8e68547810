"""The new generation of a stream in memory. It begins when a writer enters the stream and no other writer lives."""

from __future__ import annotations

from typing import Any

from streams.core.bound import BoundStream

__all__ = ["begin_generation"]

#: Seconds to wait for locked rows before giving up. The transaction that locks them may itself be waiting for this one.
LOCK_SECONDS = 10


def begin_generation(cursor: Any, stream: BoundStream) -> None:
    """Starts a stream in memory again at 0: deletes its facts, resets its positions and sequence, raises its generation.

    Must be called in the transaction in which a writer enters, while no other writer lives. A reader that sees the new
    generation knows that lower positions are correct, also if the writer has come far already.
    """
    # A crash must not undo a generation that readers have seen: the next one would have the same number and the same IDs.
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
