"""Positions of one stream as one process knows them (pure): reserve, complete, advance, and what follows from them.

The rules and their names are those of ``streams.md`` 2 to 4. IDs are positive and ascending here, also for backward
streams: the border to the database changes the sign.

Assumes that several threads call it (one lock inside), that the caller takes IDs from the sequence strictly between
``begin_fetch`` and ``end_fetch``, and that it completes an ID only when its transaction is known to have ended.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streams.tokens import VectorToken

__all__ = ["Fetch", "PositionTracker", "TrackerState"]


@dataclass(slots=True, eq=False)
class Fetch:
    """IDs are being fetched from the sequence at this moment; ``above`` was the highest allocated one before."""

    above: int


@dataclass(frozen=True, slots=True)
class TrackerState:
    """Where a tracker starts: the outcome of ``streams.start_up``."""

    linear: int
    positions: Mapping[str, int]
    own_name: str | None = None
    own_position: int = 0
    highest_real: int = 1


class PositionTracker:
    """The generator of ``streams.md`` 2: one per stream and process.

    A reader has no ``own_name``; it only ever calls ``advance``.
    """

    def __init__(self, state: TrackerState) -> None:
        self._lock = threading.Lock()
        self._own_name = state.own_name
        self._positions = dict(state.positions)
        self._own_position = state.own_position
        self._linear = state.linear
        self._unfinished: list[int] = []  # sorted
        self._finished_above: list[int] = []  # sorted
        self._fetching: list[Fetch] = []
        self._known_done: list[int] = []  # heap
        self._highest_real = state.highest_real
        self._last_write = 0
        self._written = self._rolled_back = 0
        self._max_allocated_seen = self._own_max = 0
        self._claim_highest()

    def _claim_highest(self) -> None:
        highest = max([self._linear, self._own_position, *self._positions.values()])
        self._max_allocated_seen = max(self._max_allocated_seen, highest)
        self._own_max = max(self._own_max, highest)

    def replay(self, rows: Iterable[tuple[str, int]], writers: Iterable[str]) -> None:
        """Steps 6 to 8 of start-up (``streams.md`` 5): rows (writer, ID) at or above the linear position, ascending.

        Rows of the own name repair a stored position that is behind, rows of unknown names help to close gaps.
        ``writers`` that have no position yet enter at the linear position.
        """
        with self._lock:
            for writer, number in rows:
                if writer == self._own_name:
                    self._own_position = max(self._own_position, number)
                    self._positions[writer] = self._own_position
                self._note_done(number)
            for writer in writers:
                self._positions.setdefault(writer, self._linear)
            self._claim_highest()

    # --- reserve and complete -------------------------------------------------------------------------------------

    def begin_fetch(self) -> Fetch:
        """Say that IDs are about to be taken from the sequence (``streams.md`` 3.1 step 2)."""
        with self._lock:
            fetch = Fetch(self._max_allocated_seen)
            self._fetching.append(fetch)
            return fetch

    def end_fetch(self, fetch: Fetch, ids: Iterable[int]) -> bool:
        """The fetch brought these IDs (none when it failed); they are unfinished until completed.

        Returns whether there is something to announce: the fetch itself may have held the position back.
        """
        with self._lock:
            before = self._announceable()
            for number in ids:
                insort(self._unfinished, number)
                self._max_allocated_seen = max(self._max_allocated_seen, number)
            self._fetching.remove(fetch)
            self._raise_own_position()
            self._note_done(self._own_position)
            return self._announceable() > before

    def complete(self, ids: Iterable[int], *, written: bool) -> bool:
        """End a reservation, by commit (``written``) or rollback; IDs that are complete already are passed over.

        Returns whether there is something to announce: the announceable position rose.
        """
        with self._lock:
            before = self._announceable()
            done = [number for number in ids if self._discard_unfinished(number)]
            for number in done:
                insort(self._finished_above, number)
            if written:
                self._written += len(done)
            else:
                self._rolled_back += len(done)
            if written and done:
                self._highest_real = max(self._highest_real, *done)
                self._last_write = max(self._last_write, *done)
            self._raise_own_position()
            for number in done:
                self._note_done(number)
            return self._announceable() > before

    def _discard_unfinished(self, number: int) -> bool:
        index = bisect_left(self._unfinished, number)
        if index == len(self._unfinished) or self._unfinished[index] != number:
            return False
        del self._unfinished[index]
        return True

    def _raise_own_position(self) -> None:
        """Own position: the largest finished ID below everything unfinished or possibly being handed out now."""
        bounds = [fetch.above + 1 for fetch in self._fetching]
        if self._unfinished:
            bounds.append(self._unfinished[0])
        covered = bisect_left(self._finished_above, min(bounds)) if bounds else len(self._finished_above)
        if covered:
            self._own_position = max(self._own_position, self._finished_above[covered - 1])
            del self._finished_above[:covered]
        if self._own_name is not None:
            self._positions[self._own_name] = self._own_position

    # --- learn from others ----------------------------------------------------------------------------------------

    def advance(self, writer: str, position: int) -> bool:
        """Another writer announced its position; late, repeated and unordered announcements are harmless.

        Returns whether this process now has something to announce itself (it is idle and may claim the same).
        """
        with self._lock:
            before = self._announceable()
            if writer != self._own_name:
                self._positions[writer] = max(self._positions.get(writer, 0), position)
            self._max_allocated_seen = max(self._max_allocated_seen, position)
            self._highest_real = max(self._highest_real, position)
            self._note_done(position)
            return self._announceable() > before

    def retire(self, writer: str) -> None:
        """That writer will never write again: it no longer takes part in the minimum."""
        with self._lock:
            if writer != self._own_name and self._positions.pop(writer, None) is not None:
                self._note_done(self._linear)

    def _note_done(self, number: int) -> None:
        """``streams.md`` 3.4: a single ID is known to be done; move the linear position."""
        heapq.heappush(self._known_done, number)
        others = [position for name, position in self._positions.items() if name != self._own_name]
        in_flight = bool(self._unfinished or self._fetching)
        if in_flight or not others:
            others.append(self._own_position)
        self._linear = max(self._linear, min(others))
        if not in_flight:
            self._own_max = max(self._own_max, self._max_allocated_seen)
        while self._known_done and self._known_done[0] <= self._linear + 1:
            self._linear = max(self._linear, heapq.heappop(self._known_done))
        self._own_max = max(self._own_max, self._linear, self._own_position)

    # --- what to report (streams.md 4) ----------------------------------------------------------------------------

    @property
    def linear(self) -> int:
        """4.1: every fact of any writer up to here is complete."""
        with self._lock:
            return self._linear

    def position_of(self, writer: str) -> int:
        """4.2 and 4.3: how far that writer is, never below the linear position; an unknown one is at the linear position."""
        with self._lock:
            if writer == self._own_name:
                return self._own_max
            return max(self._positions.get(writer, 0), self._linear)

    @property
    def own_maximum(self) -> int:
        """4.3: the furthest position that this process may claim."""
        with self._lock:
            return self._own_max

    @property
    def own_minimum(self) -> int:
        """4.4: the last position that this process really reached by its own facts."""
        with self._lock:
            return self._own_position

    @property
    def announceable(self) -> int:
        """What this process stores and announces: its maximum view, but never beyond an ID that stands for a real fact.

        A rolled-back ID moves the position in memory only, so a stored position survives a sequence that falls back.
        """
        with self._lock:
            return self._announceable()

    def _announceable(self) -> int:
        return min(self._own_max, self._highest_real)

    @property
    def last_write(self) -> int:
        """ID of the last fact that this process wrote and committed in this life; 0 if none."""
        with self._lock:
            return self._last_write

    @property
    def raw_positions(self) -> dict[str, int]:
        """4.5: positions as recorded; they may lie below the linear one."""
        with self._lock:
            return dict(self._positions)

    @property
    def pending(self) -> list[int]:
        """IDs reserved here and not complete, ascending."""
        with self._lock:
            return list(self._unfinished)

    def take_counts(self) -> tuple[int, int]:
        """Facts completed by commit and by rollback since the last call."""
        with self._lock:
            counts = self._written, self._rolled_back
            self._written = self._rolled_back = 0
            return counts

    @property
    def known_done_size(self) -> int:
        """How many single IDs wait above the linear position; it grows while a silent writer holds that back."""
        with self._lock:
            return len(self._known_done)

    def token(self) -> VectorToken:
        """The vector position: linear, plus every writer that is ahead of it."""
        with self._lock:
            return VectorToken.of(self._linear, self._positions)
