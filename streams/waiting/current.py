"""Returns the current position of a stream, as a range with two ends.

"Now" has a range of right answers, and both ends have a use:

* The **minimum view** is for waiting, and for jobs that must see every fact once. Over all writers it is the *linear
  position*. For one writer it is the last position that it reached by a fact of its own.
* The **maximum view** is what is announced. A writer with nothing open may claim the highest ID that it has received from any
  writer, because everything that it reserves later lies above. So an idle writer does not hold the linear position back.

It takes one query. A process that writes the stream knows its own part better than the table does, and adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import connections

from streams.conf import stream_settings
from streams.core.positions import RETIRED, linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.reading import watcher
from streams.reading.possible_positions import possible_positions
from streams.writing.process import current_writer

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

__all__ = ["Current", "current"]


@dataclass(frozen=True, slots=True)
class Current:
    """The current position of a stream, at both ends. Positions are positive, also on a backward stream.

    For every writer, ``linear <= maximum(writer)`` and ``minimum(writer) <= maximum(writer)``.
    """

    stream: str
    linear: int
    """The minimum view over all writers: every fact of any writer up to here is complete. Wait for this."""
    maxima: Mapping[str, int] = field(default_factory=dict)
    minima: Mapping[str, int] = field(default_factory=dict)

    def maximum(self, writer: str) -> int:
        """Returns the maximum view of a writer: the position that it may claim. For an unknown writer, the linear position."""
        return max(self.maxima.get(writer, 0), self.linear)

    def minimum(self, writer: str) -> int:
        """Returns the minimum view of a writer: the last position that it reached by a fact of its own. 0 if there is none."""
        return self.minima.get(writer, 0)

    def token(self) -> VectorToken:
        """Returns the vector position: the linear position, and an entry for each writer that is ahead of it."""
        return VectorToken.of(self.linear, self.maxima)


def current(stream: BoundStream, using: str | None = None) -> Current:
    """Returns the stream's position as this process sees it now."""
    alias = using or stream_settings().database
    with connections[alias].cursor() as cursor:
        found = possible_positions(cursor, [stream.name])
    watcher.before_shown(found, alias)
    stored = found.get(stream.name, {})
    linear = linear_position(stored.values(), stream.declaration.empty_position)
    maxima = positions_to_show(stored, linear)
    minima = {w: min(at.last_write_position or 0, at.position) for w, at in stored.items() if at.state != RETIRED}
    writer = current_writer(alias)
    tracker = writer.trackers.get(stream.name) if writer.has_lock else None
    if tracker is not None:  # our own facts need not have been announced yet
        linear = max(linear, tracker.linear)
        maxima[writer.name] = tracker.own_maximum
        minima[writer.name] = tracker.last_write or minima.get(writer.name, 0)
    return Current(stream.name, linear, maxima, minima)
