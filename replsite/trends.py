"""What one snapshot cannot tell: whether a reader moves, and whether its lag grows (pure).

Keeps a short memory of earlier snapshots of the same process. Time is given with every sample and is the database's, so
it must not mix samples of different servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

__all__ = ["History", "Motion", "Sample"]

WINDOW_SECONDS = 30.0
#: A change of lag is not judged over less than this.
SHORTEST_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Where a reader was on a stream: its positions, comparable, and its lag."""

    position: Hashable
    lag_facts: int


@dataclass(frozen=True, slots=True)
class Motion:
    """How a reader moved; None where it was not watched long enough to tell."""

    unmoved_seconds: float | None = None
    lag_change_per_second: float | None = None


class _Track:
    def __init__(self, at: float, sample: Sample) -> None:
        self.moved_at = at
        self.samples: deque[tuple[float, Sample]] = deque([(at, sample)])

    def add(self, at: float, sample: Sample) -> None:
        if sample.position != self.samples[-1][1].position:
            self.moved_at = at
        self.samples.append((at, sample))
        while len(self.samples) > 2 and self.samples[1][0] <= at - WINDOW_SECONDS:
            self.samples.popleft()


class History:
    """Earlier samples by key. Not thread-safe: whoever takes snapshots owns it."""

    def __init__(self) -> None:
        self._tracks: dict[Hashable, _Track] = {}

    def add(self, at: float, samples: Mapping[Hashable, Sample]) -> dict[Hashable, Motion]:
        """Take the samples of one snapshot, forget keys that are not in it, and tell how each key moved."""
        for gone in self._tracks.keys() - samples.keys():
            del self._tracks[gone]
        return {key: self._add_one(key, at, sample) for key, sample in samples.items()}

    def _add_one(self, key: Hashable, at: float, sample: Sample) -> Motion:
        track = self._tracks.get(key)
        if track is None:
            self._tracks[key] = _Track(at, sample)
            return Motion()
        track.add(at, sample)
        then, before = track.samples[0]
        if at - then < SHORTEST_SECONDS:
            return Motion(at - track.moved_at)
        return Motion(at - track.moved_at, (sample.lag_facts - before.lag_facts) / (at - then))
