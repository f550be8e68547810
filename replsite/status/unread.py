"""Computes lag: the facts that a reader has not read yet, as a number and as a time (pure).

All IDs of a stream come from one sequence. So the difference of two positions also counts other writers' facts and
rolled-back IDs. Exact lag counts the facts instead. A *window* with the newest facts of a stream is read once, and every
reader is compared with it. Lag is estimated only for a reader that is further behind than the window, and is marked as an
estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from streams.core.positions import positions_of


@dataclass(frozen=True, slots=True)
class Unread:
    """The number and age of the facts that a reader's vector lacks."""

    facts: int
    exact: bool
    """False: ``facts`` is an estimate from the difference of IDs."""
    oldest_at: datetime | None
    """When the oldest unread fact was received. None: nothing is unread, or the fact lies below the window."""
    below_window: bool = False
    """True: the oldest unread fact may lie below the window and must be looked up."""


class Window:
    """The newest facts of a stream, by writer.

    Every fact with an ID above ``complete_above`` is in the window. A fact of several rows may be given several times;
    its oldest row counts.
    """

    def __init__(self, facts: Iterable[tuple[int, str, datetime]], complete_above: int) -> None:
        self.complete_above = complete_above
        #: IDs by writer, ascending, and the times of the same facts.
        self.ids: dict[str, list[int]] = {}
        self.times: dict[str, list[datetime]] = {}
        previous = None
        for number, writer, received_at in sorted(facts):  # among the rows of a fact, the oldest comes first
            if number != previous:
                self.ids.setdefault(writer, []).append(number)
                self.times.setdefault(writer, []).append(received_at)
            previous = number


EMPTY = Window((), 0)


def unread(have: Mapping[str, int], upto: Mapping[str, int], window: Window) -> Unread:
    """Returns the facts that a reader has not read, over all writers.

    ``have`` is the reader's vector. ``upto`` gives for each writer the position up to which it has facts. If the reader
    has reached all of ``upto``, it has no lag, whatever the clock says.
    """
    facts, oldest, gap_from, gap_upto = 0, None, None, 0
    complete_above, ids_of = window.complete_above, window.ids.get
    for mine, (writer, at) in zip(positions_of(have, upto), upto.items(), strict=True):
        if mine >= at:
            continue
        if (ids := ids_of(writer)) is not None:
            first = bisect_right(ids, mine)
            end = len(ids) if ids[-1] <= at else bisect_right(ids, at)
            if first < end:
                facts += end - first
                received_at = window.times[writer][first]
                if oldest is None or received_at < oldest:
                    oldest = received_at
        # The window does not cover (mine, complete_above]. The difference of IDs is the estimate for this part. The parts of
        # several writers overlap and share their IDs, so the estimate is one span over all of them.
        if mine < complete_above:
            gap_from = mine if gap_from is None else min(gap_from, mine)
            gap_upto = max(gap_upto, min(at, complete_above))
    if gap_from is None:
        return Unread(facts, True, oldest)
    return Unread(facts + gap_upto - gap_from, False, oldest, below_window=True)
