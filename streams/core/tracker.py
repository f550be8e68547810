"""Positions of one stream as one process knows them (pure): reserve, complete, advance, and what follows from them.

``docs/explanation/streams.md`` tells the ideas. IDs are positive and ascending here, also for backward
streams: the border to the database changes the sign.

Assumes that several threads call it (one lock inside), that the caller takes IDs from the sequence strictly between
``begin_fetch`` and ``end_fetch``, and that it completes an ID only when its transaction is known to have ended.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streams.core.tokens import VectorToken

__all__ = ["Fetch", "PositionTracker", "TrackerState"]

_FEW = 16
#: Most single complete IDs that are kept above the linear position. Beyond that the largest are dropped, and the linear
#: position crosses those only by the minimum of the writers' positions.
KNOWN_DONE_LIMIT = 100_000
#: Complete own IDs above an unfinished one are put together when they are more than this: only the last of a run matters.
_FINISHED_LIMIT = 10_000


@dataclass(slots=True, eq=False)
class Fetch:
    """IDs are being fetched from the sequence at this moment; ``above`` was the highest allocated one before."""

    above: int
    count: int = 1
    begun_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackerState:
    """Where a tracker starts: the outcome of ``streams.core.recovery``."""

    linear: int
    positions: Mapping[str, int]
    own_name: str | None = None
    own_position: int = 0
    highest_real: int = 1


class PositionTracker:
    """Gives out and takes back IDs, and follows all writers: one per stream and process.

    A reader has no ``own_name``; it only ever calls ``advance``.
    """

    def __init__(self, state: TrackerState, known_done_limit: int | None = None) -> None:
        self._lock = threading.Lock()
        self._known_done_limit = KNOWN_DONE_LIMIT if known_done_limit is None else known_done_limit
        self._own_name = state.own_name
        self._positions = dict(state.positions)
        self._retired: dict[str, int] = {}
        self._own_position = state.own_position
        self._linear = state.linear
        self._unfinished: list[int] = []  # sorted
        self._finished_above: list[int] = []  # sorted
        self._fetching: list[Fetch] = []
        self._thin_at = _FINISHED_LIMIT
        self._known_done: list[int] = []  # heap
        self._lost_ids = False  # IDs were taken that nobody knows, after all that are known
        self._real = state.highest_real  # largest ID that is known to be complete and that this process may claim
        self._real_above: list[int] = []  # sorted: such IDs that it may not claim yet
        self._echoed = state.own_position
        self._last_write = self._last_rolled_back = 0
        self._written = self._rolled_back = 0
        self._max_allocated_seen = self._own_max = 0
        self._claim_highest()

    def _claim_highest(self) -> None:
        highest = max([self._linear, self._own_position, *self._positions.values()])
        self._max_allocated_seen = max(self._max_allocated_seen, highest)
        self._own_max = max(self._own_max, highest)

    def replay(self, rows: Iterable[tuple[str, int]], writers: Iterable[str]) -> None:
        """Steps 6 to 8 of ``streams.core.recovery``: rows (writer, ID) at or above the linear position, ascending.

        Rows of the own name repair a stored position that is behind, rows of unknown names help to close gaps.
        ``writers`` that have no position yet enter at the linear position.
        """
        with self._lock:
            for writer, number in rows:
                if writer == self._own_name:
                    self._own_position = self._echoed = max(self._own_position, number)
                    self._positions[writer] = self._own_position
                self._note_done([number])
            for writer in writers:
                self._positions.setdefault(writer, self._linear)
            self._claim_highest()

    # --- reserve and complete -------------------------------------------------------------------------------------

    def begin_fetch(self, count: int = 1, begun_at: float = 0.0) -> Fetch:
        """Say that IDs are about to be taken from the sequence: until they are known, our position may not pass them."""
        with self._lock:
            fetch = Fetch(self._max_allocated_seen, count, begun_at)
            self._fetching.append(fetch)
            return fetch

    def end_fetch(self, fetch: Fetch, ids: Iterable[int]) -> bool:
        """The fetch brought these IDs (none when it failed); they are unfinished until completed.

        Returns whether there is something to announce: the fetch itself may have held the position back.
        """
        with self._lock:
            before = self._real
            taken = list(ids)
            _insert(self._unfinished, taken)
            self._max_allocated_seen = max([self._max_allocated_seen, *taken])
            self._fetching.remove(fetch)
            self._lost_ids = not taken
            self._raise_own_position()
            self._note_done(())
            return self._real > before or self._lost_ids

    def settle(self, fetch: Fetch, ids: Iterable[int]) -> bool:
        """``end_fetch`` and ``complete`` in one: the transaction that took these IDs has ended, and what it wrote is committed.

        Returns whether there is something to announce. IDs that are complete already are passed over.
        """
        with self._lock:
            before = self._real
            self._fetching.remove(fetch)
            done = [number for number in ids if not _holds(self._finished_above, number)]
            self._lost_ids = not done
            if done:
                self._max_allocated_seen = max(self._max_allocated_seen, *done)
                if self._unfinished:
                    self._take_unfinished(done)
                self._finish(done, written=True)
            self._raise_own_position()
            self._note_done(done)
            return self._real > before or self._lost_ids

    @property
    def has_lost_ids(self) -> bool:
        """At rest, and the last fetch failed: it may have taken IDs that nobody knows, so the sequence may be ahead."""
        with self._lock:
            return self._lost_ids and not (self._unfinished or self._fetching)

    def complete(self, ids: Iterable[int], *, written: bool) -> bool:
        """End a reservation, by commit (``written``) or rollback; IDs that are complete already are passed over.

        Returns whether there is something to announce: the announceable position rose.
        """
        with self._lock:
            before = self._real
            done = self._take_unfinished(list(ids))
            self._finish(done, written=written)
            self._raise_own_position()
            self._note_done(done)
            return self._real > before

    def _finish(self, done: list[int], *, written: bool) -> None:
        _insert(self._finished_above, done)
        self._thin_out()
        self._note_real(done)
        if written:
            self._written += len(done)
            self._last_write = max([self._last_write, *done])
        else:
            self._rolled_back += len(done)
            self._last_rolled_back = max([self._last_rolled_back, *done])

    def _take_unfinished(self, ids: list[int]) -> list[int]:
        """Remove these IDs from the unfinished; those that were there, ascending."""
        if len(ids) > _FEW:  # one pass for a block, a search for each of a few
            wanted = set(ids)
            done = [number for number in self._unfinished if number in wanted]
            self._unfinished = [number for number in self._unfinished if number not in wanted]
            return done
        return sorted(number for number in ids if self._discard_unfinished(number))

    def _discard_unfinished(self, number: int) -> bool:
        index = bisect_left(self._unfinished, number)
        if index == len(self._unfinished) or self._unfinished[index] != number:
            return False
        del self._unfinished[index]
        return True

    def _thin_out(self) -> None:
        """Many IDs are complete above an unfinished one: of each run between two of those only the last can be a position.

        IDs that are being fetched lie above what was allocated when the fetch began, so what lies below that is settled.
        """
        if max(len(self._finished_above), len(self._real_above)) <= self._thin_at:
            return
        settled = min((fetch.above for fetch in self._fetching), default=self._max_allocated_seen)
        self._finished_above = _last_of_runs(self._finished_above, self._unfinished, settled)
        ends = sorted({*self._unfinished, *(number + 1 for number in self._finished_above)})
        self._real_above = _last_of_runs(self._real_above, ends, settled)
        self._thin_at = max(_FINISHED_LIMIT, 2 * len(self._finished_above), 2 * len(self._real_above))

    def _note_real(self, numbers: Iterable[int]) -> None:
        """These very IDs are complete."""
        _insert(self._real_above, [number for number in numbers if number > self._real])

    def _raise_own_position(self) -> None:
        """Own position: the largest finished ID below everything unfinished or possibly being handed out now."""
        bounds = [self._fetching[0].above + 1] if self._fetching else []  # they are in the order in which they began
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
            before = self._real
            self._place(writer, position)
            self._learn(position)
            return self._real > before

    def learn(self, active: Mapping[str, int], retired: Mapping[str, int]) -> bool:
        """What the table of positions says of all writers, at once: one by one the first could pass an unknown second.

        Returns whether this process now has something to announce itself.
        """
        with self._lock:
            before = self._real
            for writer, position in active.items():
                self._place(writer, position)
            for writer, position in retired.items():
                self._remove(writer, position)
            for position in sorted({*active.values(), *retired.values()}):
                self._learn(position)
            return self._real > before

    def _place(self, writer: str, position: int) -> None:
        if writer == self._own_name:
            self._echoed = max(self._echoed, position)
        else:
            self._positions[writer] = max(self._positions.get(writer, 0), self._retired.pop(writer, 0), position)

    def _remove(self, writer: str, position: int) -> None:
        if writer != self._own_name:
            self._retired[writer] = max(self._positions.pop(writer, 0), self._retired.get(writer, 0), position)

    def _learn(self, position: int) -> None:
        """Some writer announced this position: an ID of a committed transaction (see ``announceable``)."""
        self._max_allocated_seen = max(self._max_allocated_seen, position)
        self._note_real([position])
        self._note_done([position])

    def observe(self, position: int) -> bool:
        """An ID of a committed transaction that another stream of the same sequence got: never one of this stream.

        Returns whether this process now has something to announce here: it is idle, and has come that far.
        """
        with self._lock:
            before = self._real
            self._learn(position)
            return self._real > before

    def retire(self, writer: str, position: int = 0) -> None:
        """That writer will never write again above its last ``position``: it no longer takes part in the minimum."""
        with self._lock:
            self._remove(writer, position)
            self._learn(position)

    def _note_done(self, numbers: Iterable[int]) -> None:
        """Single IDs are known to be done; move the linear position over gapless runs of them."""
        for number in numbers:
            if number > self._linear:
                heapq.heappush(self._known_done, number)
        self._linear = max(self._linear, self._minimum())
        if not (self._unfinished or self._fetching):
            self._own_max = max(self._own_max, self._max_allocated_seen)
        while self._known_done and self._known_done[0] <= self._linear + 1:
            self._linear = max(self._linear, heapq.heappop(self._known_done))
        if len(self._known_done) > self._known_done_limit:
            # Half of them, so that this is rare; the smaller ones, since the linear position comes to those first. A run ends
            # before a dropped ID: silent is at 10, 12 to 14 are kept, 15 to 29 are not. Silent announces 11, and the linear
            # position goes to 14. Silent hears of 29, is idle, announces 29, and the minimum takes the linear position there.
            self._known_done = sorted(set(self._known_done))[: self._known_done_limit // 2]  # a sorted list is a heap
        self._own_max = max(self._own_max, self._linear, self._own_position)
        covered = bisect_right(self._real_above, self._own_max)
        if covered:
            self._real = self._real_above[covered - 1]
            del self._real_above[:covered]

    def _minimum(self) -> int:
        """Up to where every writer that is known here is complete.

        An idle process needs no entry of its own: what it reserves later lies above everything announced. A lone writer
        goes by its own announcements as they come back to it (``_echoed``) and not by its own position: a writer that joined
        before an ID was reserved told so before that announcement, so its IDs are not passed unheard. With all writers
        retired everything that they announced is complete.
        """
        others = [position for name, position in self._positions.items() if name != self._own_name]
        if not others:
            return self._echoed if self._own_name is not None else self._max_allocated_seen
        if self._unfinished or self._fetching:
            others.append(self._own_position)
        return min(others)

    # --- what to report -------------------------------------------------------------------------------------------

    @property
    def linear(self) -> int:
        """Every fact of any writer up to here is complete."""
        with self._lock:
            return self._linear

    def position_of(self, writer: str) -> int:
        """How far that writer is, never below the linear position; an unknown one is at the linear position."""
        with self._lock:
            if writer == self._own_name:
                return self._own_max
            return max(self._positions.get(writer, 0), self._retired.get(writer, 0), self._linear)

    @property
    def own_maximum(self) -> int:
        """The furthest position that this process may claim."""
        with self._lock:
            return self._own_max

    @property
    def own_minimum(self) -> int:
        """The last position that this process really reached by its own facts."""
        with self._lock:
            return self._own_position

    @property
    def announceable(self) -> int:
        """What this process stores and announces: the largest ID known to be complete that its maximum view covers.

        So whoever hears it knows that this very ID is complete (a run without gaps may step onto it): the head of the sequence,
        which the maximum view begins with, may be pending elsewhere. A rolled-back ID counts: its position is stored later
        than the sequence gave it out, so no crash and no fail-over that keeps the position loses the sequence's value.
        """
        with self._lock:
            return self._real

    @property
    def last_write(self) -> int:
        """ID of the last fact that this process wrote and committed in this life; 0 if none."""
        with self._lock:
            return self._last_write

    @property
    def last_rolled_back(self) -> int:
        """The largest ID that this process let go in this life; 0 if none. Nothing wrote it to the disk."""
        with self._lock:
            return self._last_rolled_back

    @property
    def raw_positions(self) -> dict[str, int]:
        """Positions as recorded; they may lie below the linear one."""
        with self._lock:
            return dict(self._positions)

    @property
    def pending(self) -> list[int]:
        """IDs reserved here and not complete, ascending."""
        with self._lock:
            return list(self._unfinished)

    def fetches_begun_before(self, moment: float) -> list[Fetch]:
        """Fetches that have been under way since before that moment, the oldest first."""
        with self._lock:
            return [fetch for fetch in self._fetching if fetch.begun_at < moment]

    def take_counts(self) -> tuple[int, int]:
        """Facts completed by commit and by rollback since the last call."""
        with self._lock:
            counts = self._written, self._rolled_back
            self._written = self._rolled_back = 0
            return counts

    def token(self) -> VectorToken:
        """The vector position: linear, plus every writer that is ahead of it."""
        with self._lock:
            return VectorToken.of(self._linear, self._positions)


def _last_of_runs(numbers: list[int], bounds: list[int], settled: int) -> list[int]:
    """Of ascending numbers up to ``settled`` the last one below each bound, and the last of all; and all above."""
    upto = bisect_right(numbers, settled)
    ends = sorted({min(bisect_left(numbers, bound), upto) for bound in bounds} | {upto})
    return [numbers[end - 1] for end in ends if end] + numbers[upto:]


def _holds(numbers: list[int], number: int) -> bool:
    """Whether a sorted list has that number."""
    index = bisect_left(numbers, number)
    return index < len(numbers) and numbers[index] == number


def _insert(numbers: list[int], more: list[int]) -> None:
    """Add to a sorted list: by search when there are few, by one merge of runs when there are many."""
    if len(more) > _FEW:
        numbers.extend(more)
        numbers.sort()
        return
    for number in more:
        insort(numbers, number)
