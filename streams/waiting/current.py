"""Returns the current position of a stream: its minimum and its maximum.

Both positions are correct answers to the question where a stream is now:

* The **minimum** of a writer is the ID of its last fact that is known to be committed. The lowest of all writers' positions is
  the *linear position*, up to which the facts of all are complete. Use it to wait, and in jobs that must see every fact once.
* The **maximum** of a writer is its stored position: all its facts up to there are complete. It is above its last fact if others
  have appended since, so that an idle writer does not hold the linear position back.

Positions are handed out, to browsers for instance, so they are stored ones (``streams.reading.position_store``). If the caller's
process has appended facts since they were stored, or if no process looks, this process looks first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import connections

from streams.conf import stream_settings
from streams.core.positions import RETIRED, linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.db.snapshots import keeps_snapshot
from streams.reading import watcher
from streams.reading.looker import look_now
from streams.reading.possible_positions import positions_and_sequence
from streams.writing.given_out import last_given_out

if TYPE_CHECKING:
    from streams.core.bound import BoundStream


@dataclass(frozen=True, slots=True)
class Current:
    """The current position of a stream, with its minimum and maximum. Positions are positive, also on a backward stream.

    For every writer, ``linear <= maximum(writer)`` and ``minimum(writer) <= maximum(writer)``.
    """

    stream: str
    linear: int
    """The minimum over all writers: every fact of every writer up to here is complete."""
    maxima: Mapping[str, int] = field(default_factory=dict)
    minima: Mapping[str, int] = field(default_factory=dict)

    def maximum(self, writer: str) -> int:
        """Returns the position of a writer. For an unknown writer, returns the linear position."""
        return max(self.maxima.get(writer, 0), self.linear)

    def minimum(self, writer: str) -> int:
        """Returns the ID of the last fact that a writer is known to have committed. Returns 0 if no such fact is known."""
        return self.minima.get(writer, 0)

    def token(self) -> VectorToken:
        return VectorToken.of(self.linear, self.maxima)


def current(stream: BoundStream, using: str | None = None) -> Current:
    """Returns the stream's position as this process sees it now, or as the snapshot of the caller's transaction shows it."""
    alias = using or stream_settings().database
    connection, declaration = connections[alias], stream.declaration
    known = found.known(stream.name) if (found := watcher.watcher_of(alias)) is not None else {}
    with connection.cursor() as cursor:
        stored, given_out = positions_and_sequence(cursor, declaration, known)
        linear = linear_position(stored.values(), declaration.empty_position)
        if (given_out is None or given_out > linear) and not keeps_snapshot(connection):
            is_own = last_given_out(stream, connection) > linear
            if look_now(alias, even_if_led=is_own):
                stored, _ = positions_and_sequence(cursor, declaration, known)
                linear = linear_position(stored.values(), declaration.empty_position)
    watcher.before_shown({stream.name: stored}, alias)
    minima = {w: min(at.last_write_position or 0, at.position) for w, at in stored.items() if at.state != RETIRED}
    return Current(stream.name, linear, positions_to_show(stored, linear), minima)
