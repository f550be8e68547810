"""Detects from several snapshots whether a reader moves, and whether its lag grows (pure).

One snapshot cannot show movement or growth. A `History` keeps the figures of this process's recent snapshots. Every
sample comes with its time by the database's clock. So samples of different database servers must not be mixed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any, NamedTuple

from replsite.status.series import Recent

WINDOW_SECONDS = 30.0
#: Length and step of the samples from which growth in an hour is computed.
HOUR_SECONDS, HOUR_STEP_SECONDS = 3_600.0, 60.0
#: Changes over a shorter time are not judged.
SHORTEST_SECONDS = 3.0


class Sample(NamedTuple):
    """A reader's position on a stream, for each writer, and its lag."""

    position: Mapping[str, int]
    lag_facts: int


class Motion(NamedTuple):
    """The movement of a reader. A value is None if the reader was not watched long enough."""

    unmoved_seconds: float | None = None
    lag_change_per_second: float | None = None
    went_back_seconds: float | None = None
    """How long ago its position for a writer became lower. None: it never did while watched."""


class _Track:
    """The history of one key: its last position, its recent lags, and when its position changed."""

    # There may be many thousands of keys, so a lag or position that does not change is stored once.
    __slots__ = ("lags", "moved_at", "position", "since", "went_back_at")

    def __init__(self, at: float, sample: Sample) -> None:
        self.since = self.moved_at = at
        self.went_back_at: float | None = None
        self.position = sample.position
        #: (moment, lag): the lag from that moment until the next entry.
        self.lags = [(at, sample.lag_facts)]

    def add(self, at: float, sample: Sample, oldest: float) -> None:
        """Adds the next sample, and drops the lags that were followed by another lag before the moment ``oldest``."""
        before, self.position = self.position, sample.position
        if sample.position is not before and sample.position != before:
            self.moved_at = at
            if any(position < before.get(writer, position) for writer, position in sample.position.items()):
                self.went_back_at = at
        if sample.lag_facts != self.lags[-1][1]:
            self.lags.append((at, sample.lag_facts))
        self.since = max(self.since, oldest)
        while len(self.lags) > 1 and self.lags[1][0] <= self.since:
            del self.lags[0]


class Growth:
    """How much counters grew within a window, by key. There may be several counters for each key."""

    def __init__(self, window_seconds: float, shortest_seconds: float, step_seconds: float = 0.0) -> None:
        self._window, self._shortest, self._step = window_seconds, shortest_seconds, step_seconds
        self._seen: dict[Hashable, deque[tuple[float, tuple[int, ...]]]] = {}

    def add(
        self, at: float, counters: Mapping[Hashable, tuple[int, ...]]
    ) -> dict[Hashable, tuple[float, tuple[int, ...]] | None]:
        """Adds the counters of one moment, and forgets keys that are not in ``counters``.

        Returns for each key (seconds, growth of each counter in this time), or None if it was not watched long enough.
        """
        for key in self._seen.keys() - counters.keys():
            del self._seen[key]
        return {key: self._add_one(key, at, values) for key, values in counters.items()}

    def _add_one(self, key: Hashable, at: float, values: tuple[int, ...]) -> tuple[float, tuple[int, ...]] | None:
        seen = self._seen.setdefault(key, deque())
        if not seen or not 0 <= at - seen[-1][0] < self._step:
            seen.append((at, values))
        while len(seen) > 1 and seen[1][0] <= at - self._window:
            seen.popleft()
        then, before = seen[0]
        if at - then < self._shortest:
            return None
        return at - then, tuple(now - was for now, was in zip(values, before, strict=True))


class History:
    """The samples of earlier snapshots, by key. Not thread-safe: it belongs to the one caller that takes snapshots."""

    def __init__(self) -> None:
        self._tracks: dict[Hashable, _Track] = {}
        self._moments: deque[float] = deque()
        self._seldom: dict[str, tuple[float, Any]] = {}
        #: Positions of readers as they were read last, by the database's hash of them (``replsite.live_rows.readers``).
        self.positions: dict[int, Any] = {}
        self.lag = Recent()
        self.facts = Recent()
        self.written = Growth(WINDOW_SECONDS, SHORTEST_SECONDS)
        self.moved = Growth(WINDOW_SECONDS, SHORTEST_SECONDS)
        self.hours = Growth(HOUR_SECONDS, HOUR_SECONDS, HOUR_STEP_SECONDS)
        self._first_seen: dict[str, dict[Hashable, Any]] = {}

    def first_seen(self, kind: str, now: Any, keys: Set[Hashable]) -> Mapping[Hashable, Any]:
        """Returns when each key of this kind was seen first, and forgets its other keys. A key that comes back is new."""
        known = self._first_seen.get(kind, {})
        self._first_seen[kind] = {key: known.get(key, now) for key in keys}
        return self._first_seen[kind]

    def seldom(self, name: str, at: float, every_seconds: float, read: Callable[[], Any]) -> Any:
        """Returns the cached result of ``read``.

        Calls ``read`` again if the result is ``every_seconds`` old, or the clock went back.
        """
        known = self._seldom.get(name)
        if known is None or not 0 <= at - known[0] < every_seconds:
            known = self._seldom[name] = (at, read())
        return known[1]

    def add(self, at: float, samples: Mapping[Hashable, Sample]) -> dict[Hashable, Motion]:
        """Adds the samples of one snapshot, forgets keys that are not in it, and returns how each key moved."""
        for key in self._tracks.keys() - samples.keys():
            del self._tracks[key]
        self._moments.append(at)
        while len(self._moments) > 2 and self._moments[1] <= at - WINDOW_SECONDS:
            self._moments.popleft()
        return {key: self._add_one(key, at, sample) for key, sample in samples.items()}

    def _add_one(self, key: Hashable, at: float, sample: Sample) -> Motion:
        track = self._tracks.get(key)
        if track is None:
            self._tracks[key] = _Track(at, sample)
            return Motion()
        track.add(at, sample, self._moments[0])
        then, before = track.since, track.lags[0][1]
        went_back = None if track.went_back_at is None else at - track.went_back_at
        if at - then < SHORTEST_SECONDS:
            return Motion(at - track.moved_at, None, went_back)
        return Motion(at - track.moved_at, (sample.lag_facts - before) / (at - then), went_back)
