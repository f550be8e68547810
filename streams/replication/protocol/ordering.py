"""The order in which a follower hands out facts (pure): per writer as soon as known, or linear over all writers.

Both views are fed with whole facts of one stream and with its linear position, and answer what may be handed out now.
The linear view keeps facts above the linear position back. When too many wait, or when a gap was not fetched at once,
it remembers only up to where facts are missing from its buffer; that range is then read again from the table,
ascending over all writers, once the linear position has passed it.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

__all__ = ["FollowedRow", "LinearView", "Range", "View"]


class View(enum.StrEnum):
    """The order a handler chooses."""

    WRITER = "writer"
    """Facts of each writer in order, as soon as known; between writers in no order."""
    LINEAR = "linear"
    """All facts in order of their tokens, never above the linear position."""


class FollowedRow(msgspec.Struct, frozen=True):
    """One row as a handler gets it; rows of one fact have the same token."""

    stream: str
    instance: str
    token: int
    row: Any


@dataclass(frozen=True, slots=True)
class Range:
    """Facts of all writers with after < token <= upto are to be read from the table, ascending, and handed out."""

    after: int
    upto: int


@dataclass(order=True, slots=True)
class _Waiting:
    token: int
    rows: tuple[FollowedRow, ...] = field(compare=False)


class LinearView:
    """One stream in linear order. `handed_out` is the position up to which everything was handed out."""

    def __init__(self, handed_out: int, buffer_limit_rows: int = 10_000) -> None:
        self.handed_out = handed_out
        self._waiting: list[_Waiting] = []  # heap
        self._waiting_rows = 0
        self._missing_upto = handed_out
        self._buffer_limit_rows = buffer_limit_rows

    @property
    def buffered_rows(self) -> int:
        """Rows that wait for the linear position."""
        return self._waiting_rows

    def add(self, rows: Iterable[FollowedRow]) -> None:
        """The rows of one fact above the linear position came in."""
        fact = tuple(rows)
        token = fact[0].token
        if token <= max(self.handed_out, self._missing_upto):
            return  # it is read with the missing range
        heapq.heappush(self._waiting, _Waiting(token, fact))
        self._waiting_rows += len(fact)
        if self._waiting_rows > self._buffer_limit_rows:
            self.miss(max(waiting.token for waiting in self._waiting))

    def miss(self, upto: int) -> None:
        """Facts up to `upto` may be missing here: they will be read from the table when their turn comes."""
        self._missing_upto = max(self._missing_upto, upto)
        kept = [waiting for waiting in self._waiting if waiting.token > self._missing_upto]
        heapq.heapify(kept)
        self._waiting = kept
        self._waiting_rows = sum(len(waiting.rows) for waiting in kept)

    def due(self, linear: int) -> Range | None:
        """The range that has to be read before anything else is handed out; tell `read` how far that got."""
        upto = min(linear, self._missing_upto)
        return Range(self.handed_out, upto) if upto > self.handed_out else None

    def read(self, reached: int) -> None:
        """The due range was read and handed out up to here."""
        self.handed_out = max(self.handed_out, reached)

    def take(self, linear: int) -> list[FollowedRow]:
        """Buffered rows up to the linear position, ascending. Only when nothing is due."""
        rows: list[FollowedRow] = []
        while self._waiting and self._waiting[0].token <= linear:
            fact = heapq.heappop(self._waiting)
            self._waiting_rows -= len(fact.rows)
            rows += fact.rows
        self.handed_out = max(self.handed_out, linear)
        return rows

    def leave(self) -> list[FollowedRow]:
        """All buffered rows, ascending: the stream began anew, and the linear position comes to them no more."""
        return self.take(max((fact.token for fact in self._waiting), default=self.handed_out))
