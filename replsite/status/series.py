"""Keeps the last five minutes of figures in steps of 15 seconds, for the small charts (pure).

A step holds either the highest value seen in it (lag), or the growth per second of a counter over it (facts written). A
step without any sample is None. Callers give every value with its time by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

STEP_SECONDS = 15
STEPS = 20
#: No rate is computed over a longer pause between two samples of a counter.
_LONGEST_GAP_SECONDS = 2 * STEP_SECONDS

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter: its last value, and the base from which the rate of the present step is computed."""

    base_at: float
    base: float
    last_at: float
    last: float


class _Steps:
    """The values of the last steps of one key, oldest first."""

    # There may be many thousands of keys, so the values are a plain list and ``last`` is the number of its last step.
    __slots__ = ("last", "values")

    def __init__(self, last: int) -> None:
        self.last = last
        self.values: list[float | None] = [None] * STEPS

    def go_to(self, step: int) -> None:
        """Drops the oldest values, so that ``step`` becomes the last one. Does nothing for a step that is not later."""
        if (dropped := min(step - self.last, STEPS)) > 0:
            self.values = self.values[dropped:] + [None] * dropped
            self.last = step

    def get(self, step: int) -> float | None:
        """Returns the value of a step. None if it was not sampled or is out of range."""
        place = STEPS - 1 - (self.last - step)
        return self.values[place] if 0 <= place < STEPS else None

    def put(self, step: int, value: float) -> None:
        """Stores the value of a step, unless the step is too old."""
        self.go_to(step)
        if (place := STEPS - 1 - (self.last - step)) >= 0:
            self.values[place] = value

    def upto(self, step: int) -> Series:
        """Returns the values of the ``STEPS`` steps up to this one, oldest first. A step without a sample has None."""
        self.go_to(step)
        if step == self.last:
            return tuple(self.values)
        return tuple(self.get(s) for s in range(step - STEPS + 1, step + 1))


class Recent:
    """The figures of the last five minutes, by key. Not thread-safe. ``forget_others`` removes keys that are gone."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, _Steps] = {}
        self._seen: dict[Hashable, _Counter] = {}
        self._at: float | None = None

    def is_cold(self, at: float) -> bool:
        """Returns true if no sample was added for half a minute.

        Then it is worth loading the stored history of the site.
        """
        return self._at is None or at - self._at > _LONGEST_GAP_SECONDS

    def seed(self, key: Hashable, values: Iterable[tuple[float, float]]) -> None:
        """Adds (moment, value) pairs of earlier steps from another source. Steps that are known already keep their values."""
        for at, value in values:
            step = int(at // STEP_SECONDS)
            steps = self._of(key, step)
            if steps.get(step) is None:
                steps.put(step, value)

    def highest(self, at: float, values: Mapping[Hashable, float]) -> dict[Hashable, Series]:
        """Adds the values of one moment.

        Returns for each key the highest value of each of its last steps, oldest first.
        """
        step = int(at // STEP_SECONDS)
        for key, value in values.items():
            steps = self._of(key, step)
            highest = steps.get(step)
            if highest is None or value > highest:
                steps.put(step, value)
        return self._series(at, values)

    def rates(self, at: float, counters: Mapping[Hashable, float]) -> dict[Hashable, Series]:
        """Adds the counters of one moment.

        Returns for each key its growth per second in each of its last steps, oldest first.

        The rate of a step covers the time since the last sample of the step before. If a counter became lower, its
        growth is counted from its new value.
        """
        step = int(at // STEP_SECONDS)
        for key, value in counters.items():
            base_at, base = self._base(key, step, at, value)
            if at > base_at:
                self._of(key, step).put(step, max(value - base, 0.0) / (at - base_at))
        return self._series(at, counters)

    def _base(self, key: Hashable, step: int, at: float, value: float) -> tuple[float, float]:
        """Returns the moment and value from which the rate of the present step is computed.

        This is usually the last sample of the step before. It is the present sample in three cases: the key has no
        earlier sample, the pause since the last sample is too long, or the counter became lower.
        """
        known = self._seen.get(key)
        if known is None or value < known.last or at - known.last_at > _LONGEST_GAP_SECONDS:
            known = _Counter(at, value, at, value)
        elif int(known.last_at // STEP_SECONDS) != step:
            known = _Counter(known.last_at, known.last, at, value)
        self._seen[key] = _Counter(known.base_at, known.base, at, value)
        return known.base_at, known.base

    def _series(self, at: float, wanted: Mapping[Hashable, float]) -> dict[Hashable, Series]:
        self._at = at
        last = int(at // STEP_SECONDS)
        return {key: self._of(key, last).upto(last) for key in wanted}

    def _of(self, key: Hashable, step: int) -> _Steps:
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = _Steps(step)
        return found

    def forget_others(self, keys: Collection[Hashable]) -> None:
        """Removes all keys that are not among ``keys``."""
        wanted = set(keys)
        for known in (self._steps, self._seen):
            for key in known.keys() - wanted:
                del known[key]
