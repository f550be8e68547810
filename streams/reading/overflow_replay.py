"""What to do when a tracker had to drop complete IDs, since a writer held the stream back for very many facts.

An alarm in the log when it drops some, and the rows read from the tables once the linear position comes to them, so that
it runs over them as if they had been kept. Called by the background thread with its cursor.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from streams.core import lookup
from streams.core.tracker import PositionTracker
from streams.runtime.logs import get_logger

__all__ = ["look_after"]

log = get_logger(__name__)
#: IDs that are looked at in one go.
REPLAY_IDS = 50_000

_told: weakref.WeakKeyDictionary[PositionTracker, int] = weakref.WeakKeyDictionary()


def look_after(cursor: Any, trackers: Mapping[str, PositionTracker]) -> None:
    """Tell of streams that are stuck over very many facts, and help those that go on again."""
    for stream, tracker in list(trackers.items()):
        if tracker.known_done_cuts:
            _tell(stream, tracker)
            _replay(cursor, stream, tracker)


def _tell(stream: str, tracker: PositionTracker) -> None:
    cuts = tracker.known_done_cuts
    if cuts > _told.get(tracker, 0):
        if tracker not in _told:
            positions = tracker.raw_positions
            log.warning(
                "stream.stuck_over_many_facts",
                stream=stream,
                linear_position=tracker.linear,
                slowest_writer=min(positions, key=positions.__getitem__, default=""),
                hint="manage.py streams names what holds it back; nothing is lost, dropped IDs are read from the tables",
            )
        _told[tracker] = cuts


def _replay(cursor: Any, stream: str, tracker: PositionTracker) -> None:
    first = tracker.replay_from
    if first is not None:
        upto = first + REPLAY_IDS
        tracker.replay_done(lookup.get(stream).ids_between(cursor, first - 1, upto), upto)
