"""The last five minutes of a figure, in steps, for the small pictures beside it (pure).

Two ways to put a figure into a step: the highest value seen in it (lag), or the growth per second of a counter over it (facts
written). Steps in which nobody looked are None. Time is given with every value and is the database's.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["STEPS", "STEP_SECONDS", "Recent", "Series"]

STEP_SECONDS = 15
STEPS = 20
#: A counter that was not seen for longer tells no rate.
_LONGEST_GAP_SECONDS = 2 * STEP_SECONDS

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter: where the rate of the present step is counted from, and what was seen last."""

    base_at: float
    base: float
    last_at: float
    last: float


class _Steps:
    """The last steps of one key, oldest first. There may be many thousands of keys, so a step is a place in a list."""

    __slots__ = ("last", "values")

    def __init__(self, last: int) -> None:
        self.last = last
        self.values: list[float | None] = [None] * STEPS

    def go_to(self, step: int) -> None:
        """From now on this step is the last one, if it is later than the one that was."""
        if (gone := min(step - self.last, STEPS)) > 0:
            self.values = self.values[gone:] + [None] * gone
            self.last = step

    def get(self, step: int) -> float | None:
        """The value of a step; None when nobody looked, or when it is long over."""
        place = STEPS - 1 - (self.last - step)
        return self.values[place] if 0 <= place < STEPS else None

    def put(self, step: int, value: float) -> None:
        """Set it, unless the step is long over."""
        self.go_to(step)
        if (place := STEPS - 1 - (self.last - step)) >= 0:
            self.values[place] = value

    def upto(self, step: int) -> Series:
        """What is told at that step."""
        self.go_to(step)
        if step == self.last:
            return tuple(self.values)
        return tuple(self.get(one) for one in range(step - STEPS + 1, step + 1))


class Recent:
    """Figures by key. Not thread-safe; keys that are not in the next call are forgotten."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, _Steps] = {}
        self._seen: dict[Hashable, _Counter] = {}
        self._at: float | None = None

    def is_cold(self, at: float) -> bool:
        """Whether so little is known that it is worth asking the history of the whole site."""
        return self._at is None or at - self._at > _LONGEST_GAP_SECONDS

    def seed(self, key: Hashable, values: Iterable[tuple[float, float]]) -> None:
        """(moment, value) of earlier steps, from elsewhere; what is known already stays."""
        for at, value in values:
            step = int(at // STEP_SECONDS)
            steps = self._of(key, step)
            if steps.get(step) is None:
                steps.put(step, value)

    def highest(self, at: float, values: Mapping[Hashable, float]) -> dict[Hashable, Series]:
        """Take the values of one moment; tell each key's last steps, oldest first."""
        step = int(at // STEP_SECONDS)
        for key, value in values.items():
            steps = self._of(key, step)
            highest = steps.get(step)
            if highest is None or value > highest:
                steps.put(step, value)
        return self._told(at, values)

    def rates(self, at: float, counters: Mapping[Hashable, float]) -> dict[Hashable, Series]:
        """Take the counters of one moment; tell each key's growth per second in its last steps, oldest first.

        A step's rate is over the time since the step before; a counter that went back begins anew.
        """
        step = int(at // STEP_SECONDS)
        for key, value in counters.items():
            began, base = self._base(key, step, at, value)
            if at > began:
                self._of(key, step).put(step, max(value - base, 0.0) / (at - began))
        return self._told(at, counters)

    def _base(self, key: Hashable, step: int, at: float, value: float) -> tuple[float, float]:
        """Moment and value that the present step's rate is counted from: the last ones of the step before."""
        known = self._seen.get(key)
        if known is None or value < known.last or at - known.last_at > _LONGEST_GAP_SECONDS:
            known = _Counter(at, value, at, value)
        elif int(known.last_at // STEP_SECONDS) != step:
            known = _Counter(known.last_at, known.last, at, value)
        self._seen[key] = _Counter(known.base_at, known.base, at, value)
        return known.base_at, known.base

    def _told(self, at: float, wanted: Mapping[Hashable, float]) -> dict[Hashable, Series]:
        self._at = at
        last = int(at // STEP_SECONDS)
        return {key: self._of(key, last).upto(last) for key in wanted}

    def _of(self, key: Hashable, step: int) -> _Steps:
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = _Steps(step)
        return found

    def forget_others(self, keys: Collection[Hashable]) -> None:
        """Drop what is not among these keys."""
        wanted = set(keys)
        for known in (self._steps, self._seen):
            for gone in known.keys() - wanted:
                del known[gone]
