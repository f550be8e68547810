"""Stored positions that can be: a writer is never further than the sequence, which gave out every ID that is complete.

One above it tells nothing of the facts below: a dump was put together by hand, a row was changed, or an older program believed
what it should not have. Taken for true it would have everybody pass over the facts that get these IDs. So it counts as where the
writer was known to be before, and the stream waits until it is mended: ``manage.py check_streams`` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streams import registry
from streams.logs import get_logger
from streams.readers import StoredPosition, stored_positions

__all__ = ["possible_positions"]

log = get_logger(__name__)
#: Name: the last values that sequences gave out; null where that cannot be told.
_GIVEN_OUT = """
SELECT stream, CASE WHEN has_sequence_privilege(to_regclass(sequence), 'USAGE, SELECT')
                    THEN coalesce(pg_sequence_last_value(to_regclass(sequence)), 0) END
FROM unnest(%(streams)s::text[], %(sequences)s::text[]) AS given (stream, sequence)
"""
#: (stream, writer) -> the position that the log was told of.
_told: dict[tuple[str, str], int] = {}
Positions = Mapping[str, Mapping[str, StoredPosition]]


def possible_positions(
    cursor: Any, streams: list[str] | None, known: Positions
) -> dict[str, dict[str, StoredPosition]]:
    """``streams.readers.stored_positions``, with nothing above the sequences; ``known`` is what was told before.

    Sequences are read after positions, so they are never behind a position that was right. Streams in memory are not looked at:
    they begin anew, and their sequences with them.
    """
    found = stored_positions(cursor, streams)
    ordered = {name: registry.find(name) for name in found}
    sequences = {
        name: stream.declaration.sequence
        for name, stream in ordered.items()
        if stream is not None and not stream.declaration.in_memory
    }
    if not sequences:
        return found
    cursor.execute(_GIVEN_OUT, {"streams": list(sequences), "sequences": list(sequences.values())})
    for name, given_out in cursor.fetchall():
        if given_out is not None:
            found[name] = _held(found[name], max(given_out, 1), known.get(name, {}))
    return found


def _held(
    stored: dict[str, StoredPosition], given_out: int, known: Mapping[str, StoredPosition]
) -> dict[str, StoredPosition]:
    wrong = [writer for writer, at in stored.items() if at.position > given_out]
    if not wrong:
        return stored
    lowest = min((at.position for writer, at in stored.items() if writer not in wrong), default=1)
    held = dict(stored)
    for writer in wrong:
        at = stored[writer]
        before = known[writer].position if writer in known else lowest
        held[writer] = replace(at, position=min(before, given_out))
        if _told.get((at.stream, writer)) != at.position:
            _told[at.stream, writer] = at.position
            log.error(
                "stream.position_above_sequence",
                stream=at.stream, writer=writer, position=at.position, sequence=given_out,
            )  # fmt: skip
    return held
