"""Returns the current position of a stream: its minimum and its maximum.

Both positions are correct answers to the question where a stream is now:

* The **minimum** is the position up to which facts are certainly complete. Use it to wait, and in jobs that must see every
  fact once. The minimum over all writers is the *linear position*. The minimum of one writer is the ID of its last fact.
* The **maximum** of a writer is the highest position that it may announce. A writer without open reservations may
  announce the highest ID that it has received from any writer, because every ID that it reserves later is higher. So an
  idle writer does not hold the linear position back.

One query reads both positions. A process that writes the stream counts its own facts, which may not be announced yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from django.db import connections

from streams.conf import stream_settings
from streams.core.positions import ACTIVE, RETIRED, linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.db.snapshots import keeps_snapshot
from streams.reading import watcher
from streams.reading.possible_positions import possible_positions
from streams.writing.process import current_writer

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

__all__ = ["Current", "current"]


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
        """Returns the highest position that a writer may announce. For an unknown writer, returns the linear position."""
        return max(self.maxima.get(writer, 0), self.linear)

    def minimum(self, writer: str) -> int:
        """Returns the ID of the last fact that a writer is known to have committed. Returns 0 if no such fact is known."""
        return self.minima.get(writer, 0)

    def token(self) -> VectorToken:
        """Returns the position as a token: the linear position, and an entry for each writer that is ahead of it."""
        return VectorToken.of(self.linear, self.maxima)


def current(stream: BoundStream, using: str | None = None) -> Current:
    """Returns the stream's position as this process sees it now, or as the snapshot of the caller's transaction shows it."""
    alias = using or stream_settings().database
    writer = current_writer(alias)
    tracker = writer.trackers.get(stream.name) if writer.has_lock else None
    # Our own position is read before the table. In the other order, the table is read, writer B enters and takes 11, we
    # commit 12, and our position 12 would stand alone. In this order B's row is among the stored positions. For the same
    # reason our tracker's linear position is not used: it may have passed 12 before it knew of B.
    own = tracker.announceable if tracker is not None else 0
    # In a transaction with one snapshot, the table shows the positions of the snapshot. We have committed 12 since, in another
    # thread. A page that ended at 12 would lack 12, and the next page would begin behind it.
    if tracker is not None and keeps_snapshot(connections[alias]):
        tracker, own = None, 0
    with connections[alias].cursor() as cursor:
        found = possible_positions(cursor, [stream.name])
    watcher.before_shown(found, alias)
    stored = found.get(stream.name, {})
    here = stored.get(writer.name)
    if here is not None and here.state == ACTIVE and own > here.position:  # our own facts need not be announced yet
        stored = {**stored, writer.name: replace(here, position=own)}
    linear = linear_position(stored.values(), stream.declaration.empty_position)
    maxima = positions_to_show(stored, linear)
    minima = {w: min(at.last_write_position or 0, at.position) for w, at in stored.items() if at.state != RETIRED}
    if tracker is not None:
        maxima[writer.name] = tracker.own_maximum
        minima[writer.name] = tracker.last_write or minima.get(writer.name, 0)
    return Current(stream.name, linear, maxima, minima)
