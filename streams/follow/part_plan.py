"""Plans which facts a process handles next, if several processes share a stream by key (pure).

A *part* is a 64th of a stream's keys, by a hash of the key. Each part has a stored cursor, and at most one process at a time
handles a part's facts. Each process has a *window*: which facts of which part lie in a range of the stream. Facts do not
change, so a window stays right, whoever handles them. The parts' cursors say which of them are handled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf

__all__ = ["LEAST_FREE", "PARTS", "Part", "Plan", "Window", "share_of"]

PARTS = 64
#: A process that is alone leaves most parts free, so that another one finds work at once, also while this one handles facts.
LEAST_FREE = PARTS * 3 // 4


@dataclass(frozen=True, slots=True)
class Part:
    """A part's stored cursor. All facts of the part up to ``position`` were handled.

    Up to ``apart_upto`` its facts are handled one by one, as the handler failed on one of them together with others.
    ``attempts`` counts the attempts at the next fact. The next attempt is due in ``wait_seconds``.
    """

    number: int
    position: int
    apart_upto: int | None = None
    attempts: int = 0
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The facts to handle in one transaction, as pairs (token, part) in order, and the new positions of their parts."""

    facts: tuple[tuple[int, int], ...]
    moves: Mapping[int, int]


def share_of(processes: int) -> int:
    """Returns the number of parts that a process takes at a time.

    Half of the parts stay free. If all were taken, each process would take those again that it has just left, and go on with
    them while others, whose parts have fewer facts, wait. So those furthest behind are next, whoever had them.
    """
    return max(1, min(PARTS // (2 * max(processes, 1)), PARTS - LEAST_FREE))


class Window:
    """The facts above the parts' positions, up to ``upto``: for each part, the tokens of its facts in order.

    ``known`` maps each part to its highest known position. ``missed`` counts facts that others handled.
    """

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.known: dict[int, int] = {}
        self.missed = 0
        self._tokens: dict[int, deque[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tokens.values()))

    def add(self, found: Iterable[tuple[int, int]], upto: int) -> None:
        """Adds the facts from the window's end up to ``upto``, as pairs (token, part) in order."""
        for token, part in found:
            if token > self.known.get(part, 0):
                self._tokens.setdefault(part, deque()).append(token)
            else:
                self.missed += 1
        self.upto = upto

    def pass_over(self, part: int, position: int) -> bool:
        """Removes the handled facts of a part. Returns false if its cursor was set back: then the window is of no use."""
        if position < self.known.get(part, position):
            return False
        self.known[part] = position
        tokens = self._tokens.get(part)
        while tokens and tokens[0] <= position:
            tokens.popleft()
            self.missed += 1
        return True

    def ready(self, parts: Iterable[Part], *, apart: bool) -> list[int]:
        """Returns the parts with facts to handle now: those whose facts are handled one by one, or all others."""
        return [
            part.number
            for part in parts
            if self._tokens.get(part.number) and not part.wait_seconds and (part.apart_upto is not None) is apart
        ]

    def next_attempt(self, parts: Iterable[Part]) -> float:
        """Returns the seconds to the first attempt that is due. Returns infinity if no part waits for one."""
        return min((part.wait_seconds for part in parts if self._tokens.get(part.number)), default=inf)

    def passable(self, parts: Iterable[Part]) -> list[Part]:
        """Returns the parts that have no facts between their positions and the window's end."""
        return [part for part in parts if part.position < self.upto and not self._tokens.get(part.number)]

    def plan(self, reserved: Iterable[Part], most: int) -> Plan:
        """Returns the first ``most`` facts of these parts."""
        positions = {part.number: part.position for part in reserved}
        waiting = sorted((token, part) for part in positions for token in islice(self._tokens.get(part, ()), most + 1))
        facts, left = waiting[:most], waiting[most:]
        moves = dict.fromkeys(positions, self.upto)
        for token, part in reversed(left):
            moves[part] = token - 1
        return Plan(tuple(facts), {part: to for part, to in moves.items() if to > positions[part]})
