"""Both ends of "current", by name.

Where a stream is "now" has a range of right answers, and two of them have a use:

* the **minimum view**: what somebody else may wait for, and what a job that must see every fact once goes by. The
  *linear position* over all writers, and of one writer the last position that it really reached by facts of its own.
* the **maximum view**: what is announced. A writer with nothing open may claim the furthest ID that it has heard of from anybody,
  since all that it reserves later lies above. It lets the linear position of all others move although it is idle.

One query; a process that writes the stream knows its own part better than the table, and adds that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import connections

from streams.conf import stream_settings
from streams.core.positions import RETIRED, linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.reading import cache_feed
from streams.reading.possible_positions import possible_positions
from streams.writing.process import current_writer

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

__all__ = ["Current", "current"]


@dataclass(frozen=True, slots=True)
class Current:
    """Where a stream is, from both ends; positions are positive, also on a backward stream.

    ``linear <= maximum(writer)`` for every writer, and ``minimum(writer) <= maximum(writer)``.
    """

    stream: str
    linear: int
    """Minimum view over all writers: every fact of any writer up to here is complete. Wait for this."""
    maxima: Mapping[str, int] = field(default_factory=dict)
    minima: Mapping[str, int] = field(default_factory=dict)

    def maximum(self, writer: str) -> int:
        """Maximum view: how far that writer may claim to be; announced. An unknown one is at the linear position."""
        return max(self.maxima.get(writer, 0), self.linear)

    def minimum(self, writer: str) -> int:
        """Minimum view: the last position that it reached by a fact of its own; 0 when it never wrote, or is not known."""
        return self.minima.get(writer, 0)

    def token(self) -> VectorToken:
        """The vector position: linear, plus every writer that is ahead of it."""
        return VectorToken.of(self.linear, self.maxima)


def current(stream: BoundStream, using: str | None = None) -> Current:
    """Where the stream is, as this process sees it now."""
    alias = using or stream_settings().database
    with connections[alias].cursor() as cursor:
        found = possible_positions(cursor, [stream.name])
    cache_feed.before_shown(found, alias)
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
