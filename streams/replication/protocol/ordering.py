"""The order in which a follower delivers facts (pure): per writer as soon as received, or linear over all writers.

The caller passes whole facts of one stream and the stream's linear position to a `LinearView`. The `LinearView` returns
the rows that may be delivered, and buffers facts above the linear position.

If the buffer overflows, or if a gap was not fetched at once, the buffer may lack facts. Some position covers all facts
that may be missing. `LinearView` drops all buffered facts up to this position, and remembers only the position. The
caller later reads all writers' facts up to this position from the table, in ascending order, but not above the linear
position.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from streams.core.queries import FollowedRow

__all__ = ["FollowedRow", "LinearView", "Range", "View"]


class View(enum.StrEnum):
    """The delivery order that a handler chooses."""

    WRITER = "writer"
    """Facts of each writer in order, as soon as they are received. Facts of different writers come in any order."""
    LINEAR = "linear"
    """Facts of all writers in order of their tokens, never above the linear position."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of facts to read from the table and to deliver: the facts of all writers with after < token <= upto, ascending."""

    after: int
    upto: int


@dataclass(order=True, slots=True)
class _Waiting:
    token: int
    rows: tuple[FollowedRow, ...] = field(compare=False)


class LinearView:
    """The delivery of one stream in linear order. All facts up to ``handed_out`` were delivered."""

    def __init__(self, handed_out: int, buffer_limit_rows: int = 10_000) -> None:
        self.handed_out = handed_out
        self._waiting: list[_Waiting] = []  # heap
        self._waiting_rows = 0
        self._missing_upto = handed_out
        self._buffer_limit_rows = buffer_limit_rows

    @property
    def buffered_rows(self) -> int:
        return self._waiting_rows

    def add(self, rows: Iterable[FollowedRow]) -> None:
        """Buffers the rows of one fact until the linear position reaches the fact.

        Ignores a fact that was delivered already, or that lies in a range to be read from the table.
        """
        fact = tuple(rows)
        token = fact[0].token
        if token <= max(self.handed_out, self._missing_upto):
            return  # delivered already, or read from the table with the missing range
        heapq.heappush(self._waiting, _Waiting(token, fact))
        self._waiting_rows += len(fact)
        # The range to read from the table begins at handed_out. So the whole buffer is dropped, and not only its end. A
        # buffered fact inside of the range would be delivered twice.
        if self._waiting_rows > self._buffer_limit_rows:
            self.miss(max(waiting.token for waiting in self._waiting))

    def miss(self, upto: int) -> None:
        """Records that the buffer may lack facts up to ``upto``, and drops the buffered facts up to ``upto``.

        `due` then returns the range to read from the table in place of these facts.
        """
        self._missing_upto = max(self._missing_upto, upto)
        kept = [waiting for waiting in self._waiting if waiting.token > self._missing_upto]
        heapq.heapify(kept)
        self._waiting = kept
        self._waiting_rows = sum(len(waiting.rows) for waiting in kept)

    def due(self, linear: int) -> Range | None:
        """Returns the range to read and deliver before any buffered rows, or None if no range has to be read.

        While the caller reads the range, it reports its progress by `read`.
        """
        upto = min(linear, self._missing_upto)
        return Range(self.handed_out, upto) if upto > self.handed_out else None

    def read(self, reached: int) -> None:
        """Records that the caller has read and delivered the range of `due` up to ``reached``."""
        self.handed_out = max(self.handed_out, reached)

    def pop(self, linear: int) -> list[FollowedRow]:
        """Returns the buffered rows up to the position ``linear``, ascending. May be called only while `due` returns None."""
        rows: list[FollowedRow] = []
        while self._waiting and self._waiting[0].token <= linear:
            fact = heapq.heappop(self._waiting)
            self._waiting_rows -= len(fact.rows)
            rows += fact.rows
        self.handed_out = max(self.handed_out, linear)
        return rows

    def leave(self) -> list[FollowedRow]:
        """Returns all buffered rows, ascending.

        Called when the stream started again. Its new linear position cannot be compared with the tokens of these rows.
        """
        return self.pop(max((fact.token for fact in self._waiting), default=self.handed_out))
