"""Tracks the positions of one stream as one process knows them (pure).

``docs/explanation/streams.md`` explains the ideas. IDs are positive and ascending here, also for backward streams: the
code that talks to the database changes the sign. Any thread may call a tracker, which has a lock of its own.

The caller must take IDs from the sequence only between ``begin_fetch`` and ``end_fetch`` (or ``settle``). It must
complete an ID only when the transaction that took the ID is known to have ended.
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
#: Most single complete IDs that are kept above the linear position. If there are more, the largest are dropped. The linear
#: position then passes the dropped IDs only when the positions of all writers have passed them.
KNOWN_DONE_LIMIT = 100_000
#: If more complete own IDs than this lie above an unfinished one, most are dropped: only the last ID of each run matters.
_FINISHED_LIMIT = 10_000


@dataclass(slots=True, eq=False)
class Fetch:
    """A request to the sequence for ``count`` IDs that has not been answered yet.

    ``above`` is the highest ID that was known to be allocated when the request began, so the new IDs lie above it.
    ``begun_at`` is a time of the monotonic clock.
    """

    above: int
    count: int = 1
    begun_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackerState:
    """The state in which a tracker begins, as computed by ``streams.core.recovery``."""

    linear: int
    positions: Mapping[str, int]
    own_name: str | None = None
    own_position: int = 0
    highest_real: int = 1


class PositionTracker:
    """The positions of all writers of one stream, and the IDs that this process reserved. One for each stream and process.

    The tracker of a reader has no ``own_name`` and reserves nothing. Of such a tracker only ``advance``, ``learn`` and
    ``retire`` are called.
    """

    def __init__(self, state: TrackerState, known_done_limit: int | None = None) -> None:
        self._lock = threading.Lock()
        self._known_done_limit = KNOWN_DONE_LIMIT if known_done_limit is None else known_done_limit
        self._own_name = state.own_name
        self._positions = dict(state.positions)
        self._least_of_others: int | None = None
        self._knows_others = False  # else `_others` finds it out
        self._retired: dict[str, int] = {}
        self._own_position = state.own_position
        self._linear = state.linear
        self._unfinished: list[int] = []  # sorted
        self._finished_above: list[int] = []  # sorted
        self._fetching: list[Fetch] = []
        self._thin_at = _FINISHED_LIMIT
        self._known_done: list[int] = []  # heap
        self._lost_ids = False  # a failed fetch may have taken IDs that no process knows, above all known IDs
        self._real = state.highest_real  # largest ID that is known to be complete and that this process may claim
        self._real_above: list[int] = []  # sorted: complete IDs that this process may not claim yet
        self._echoed = state.own_position  # largest own announcement that came back to this process
        self._last_write = self._last_rolled_back = 0
        self._written = self._rolled_back = 0
        self._max_allocated_seen = self._own_max = 0
        self._claim_highest()

    def _claim_highest(self) -> None:
        highest = max([self._linear, self._own_position, *self._positions.values()])
        self._max_allocated_seen = max(self._max_allocated_seen, highest)
        self._own_max = max(self._own_max, highest)

    def replay(self, rows: Iterable[tuple[str, int]], writers: Iterable[str]) -> None:
        """Does steps 6 to 8 of ``streams.core.recovery``.

        ``rows`` are (writer, ID) of the rows at or above the linear position, in ascending order. Rows of
        this process's own name repair its stored position if that is too low. Rows of unknown names help to close gaps.
        A writer in ``writers`` that has no position yet begins at the linear position.
        """
        with self._lock:
            for writer, number in rows:
                if writer == self._own_name:
                    self._own_position = self._echoed = max(self._own_position, number)
                    self._positions[writer] = self._own_position
                self._note_done([number])
            for writer in writers:
                self._positions.setdefault(writer, self._linear)
            self._knows_others = False
            self._claim_highest()

    # --- reserve and complete -------------------------------------------------------------------------------------

    def begin_fetch(self, count: int = 1, begun_at: float = 0.0) -> Fetch:
        """Records that ``count`` IDs are about to be taken from the sequence.

        Until these IDs are known, this process's position stays below any ID that the sequence may give out.
        """
        with self._lock:
            # Without this record: the sequence has given out 5 to this process, but the answer is still on its way. B's
            # announcement of 6 arrives. This process seems idle, and claims 6 while its own fact 5 is open.
            fetch = Fetch(self._max_allocated_seen, count, begun_at)
            self._fetching.append(fetch)
            return fetch

    def end_fetch(self, fetch: Fetch, ids: Iterable[int]) -> bool:
        """Ends a request to the sequence, and records the IDs that it returned as unfinished.

        ``ids`` is empty if the request failed.

        Returns true if the control loop has something to do. One reason is that the announceable position rose, because
        only this request held it back. The other reason is that the request failed. Then the sequence may be ahead of
        all known IDs.
        """
        with self._lock:
            before = self._real
            taken = list(ids)
            _insert(self._unfinished, taken)
            self._fetching.remove(fetch)
            self._lost_ids = not taken
            if taken:
                self._max_allocated_seen = max(self._max_allocated_seen, *taken)
                # The request held back no complete ID. Now its IDs are unfinished in its place, so no position can rise.
                if not self._finished_above:
                    return False
            self._raise_own_position()
            self._note_done(())
            return self._real > before or self._lost_ids

    def settle(self, fetch: Fetch, ids: Iterable[int]) -> bool:
        """Ends a request to the sequence, and completes the IDs that it returned, in one step.

        To be called when the transaction that took the IDs has ended. ``ids`` are the IDs that this transaction
        committed. IDs that are complete already are ignored. Returns true if the announceable position rose, or if the
        call completed no ID.
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
        """True if the last request to the sequence failed, no other request is open, and no ID is unfinished.

        The failed request may have taken IDs that no process knows, so the sequence may be ahead of all known IDs.
        """
        with self._lock:
            return self._lost_ids and not (self._unfinished or self._fetching)

    def complete(self, ids: Iterable[int], *, written: bool) -> bool:
        """Completes reserved IDs, by commit (``written``) or rollback. Ignores IDs that are complete already.

        Returns true if there is something to announce: the announceable position rose.
        """
        with self._lock:
            before = self._real
            done = self._take_unfinished(list(ids))
            self._finish(done, written=written)
            self._raise_own_position()
            self._note_done(done)
            return self._real > before

    def _finish(self, done: list[int], *, written: bool) -> None:
        if not done:
            return
        _insert(self._finished_above, done)
        self._thin_out()
        self._note_real(done)
        if written:
            self._written += len(done)
            self._last_write = max(self._last_write, *done)
        else:
            self._rolled_back += len(done)
            self._last_rolled_back = max(self._last_rolled_back, *done)

    def _take_unfinished(self, ids: list[int]) -> list[int]:
        """Removes these IDs from the unfinished IDs. Returns the IDs that were removed, in ascending order."""
        if len(ids) > _FEW:  # one pass for many IDs, one search for each of a few
            wanted = set(ids)
            done = [number for number in self._unfinished if number in wanted]
            self._unfinished = [number for number in self._unfinished if number not in wanted]
            return done
        return sorted([number for number in ids if self._discard_unfinished(number)])

    def _discard_unfinished(self, number: int) -> bool:
        index = bisect_left(self._unfinished, number)
        if index == len(self._unfinished) or self._unfinished[index] != number:
            return False
        del self._unfinished[index]
        return True

    def _thin_out(self) -> None:
        """Shortens the lists of complete IDs if they have grown long. The lists grow while a lower ID is unfinished.

        Of the complete IDs between two unfinished IDs, only the last can become a position. The other complete IDs are
        dropped.
        """
        if max(len(self._finished_above), len(self._real_above)) <= self._thin_at:
            return
        # The IDs of an open request lie above its ``above``. So no ID up to ``settled`` can become unfinished.
        settled = min((fetch.above for fetch in self._fetching), default=self._max_allocated_seen)
        self._finished_above = _last_of_runs(self._finished_above, self._unfinished, settled)
        ends = sorted({*self._unfinished, *(number + 1 for number in self._finished_above)})
        self._real_above = _last_of_runs(self._real_above, ends, settled)
        self._thin_at = max(_FINISHED_LIMIT, 2 * len(self._finished_above), 2 * len(self._real_above))

    def _note_real(self, numbers: Iterable[int]) -> None:
        """Records IDs whose transactions have ended. Only such an ID may become the announced position."""
        _insert(self._real_above, [number for number in numbers if number > self._real])

    def _raise_own_position(self) -> None:
        """Raises the position of this process to its largest complete ID that lies below all open IDs.

        An ID is open if it is unfinished, or if a request to the sequence that is still running may return it.
        """
        if finished := self._finished_above:
            covered = len(finished)
            if self._fetching:  # the oldest fetch has the lowest IDs
                covered = bisect_left(finished, self._fetching[0].above + 1)
            if self._unfinished:
                covered = min(covered, bisect_left(finished, self._unfinished[0]))
            if covered:
                self._own_position = max(self._own_position, finished[covered - 1])
                del finished[:covered]
        if self._own_name is not None:
            self._positions[self._own_name] = self._own_position

    # --- learn from others ----------------------------------------------------------------------------------------

    def advance(self, writer: str, position: int) -> bool:
        """Applies a writer's announcement. Late, repeated and unordered announcements are harmless.

        Returns true if this process must now announce a position, too: this process is idle, and may claim the
        announced position.
        """
        with self._lock:
            before = self._real
            self._place(writer, position)
            self._learn(position)
            return self._real > before

    def learn(self, active: Mapping[str, int], retired: Mapping[str, int]) -> bool:
        """Applies the stored positions of all writers at once.

        ``active`` and ``retired`` map the active and the retired writers to their positions. Returns true if a position of
        this process rose, so that it has to be announced.
        """
        with self._lock:
            before = self._real
            # First all writers are recorded, then the linear position is raised. A is at 9, B at 5, and neither is known here.
            # If A's position were applied alone, the minimum would be 9, and the linear position would pass B's open facts.
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
            self._knows_others = False

    def _remove(self, writer: str, position: int) -> None:
        if writer != self._own_name:
            self._retired[writer] = max(self._positions.pop(writer, 0), self._retired.get(writer, 0), position)
            self._knows_others = False

    def _learn(self, position: int) -> None:
        """Records a position that a writer announced. The ID at this position is complete (see ``announceable``)."""
        self._max_allocated_seen = max(self._max_allocated_seen, position)
        self._note_real([position])
        self._note_done([position])

    def observe(self, position: int) -> bool:
        """Records a complete ID of another stream with the same sequence. No fact of this stream can have that ID.

        Returns true if this process now has something to announce on this stream: this process is idle, and may claim
        that ID.
        """
        with self._lock:
            before = self._real
            self._learn(position)
            return self._real > before

    def retire(self, writer: str, position: int = 0) -> None:
        """Retires a writer, so that it no longer holds back the linear position.

        ``position`` is the last position of the writer, which never writes above it again.
        """
        with self._lock:
            self._remove(writer, position)
            self._learn(position)

    def _note_done(self, numbers: Iterable[int]) -> None:
        """Records IDs as complete, and raises the linear position as far as these IDs and the writers' positions allow.

        Also raises ``own_maximum`` and ``announceable``, which depend on the linear position.
        """
        linear, minimum = self._linear, self._minimum()
        for number in numbers:
            if number > linear:
                heapq.heappush(self._known_done, number)
        linear = max(linear, minimum)
        while self._known_done and self._known_done[0] <= linear + 1:
            linear = max(linear, heapq.heappop(self._known_done))
        self._linear = linear
        if len(self._known_done) > self._known_done_limit:
            # Keep only half, so that this happens rarely. Keep the smaller half, which the linear position reaches first.
            # Example: writer B is at 10, 12 to 14 are kept, 15 to 29 are dropped. B announces 11, and the linear position goes
            # to 14. B receives 29, is idle, and announces 29. Then the minimum of all writers takes the linear position to 29.
            self._known_done = sorted(set(self._known_done))[: self._known_done_limit // 2]  # a sorted list is a heap
        self._own_max = max(self._own_max, linear, self._own_position)
        if not (self._unfinished or self._fetching):
            self._own_max = max(self._own_max, self._max_allocated_seen)
        if self._real_above:
            covered = bisect_right(self._real_above, self._own_max)
            if covered:
                self._real = self._real_above[covered - 1]
                del self._real_above[:covered]

    def _minimum(self) -> int:
        """Returns the position up to which the facts of all writers that this process knows are complete."""
        others = self._others()
        if others is None:
            # If no other writer is known, the own position alone proves nothing, because another writer may just have entered.
            # So a writer uses its own announcements once they come back to it. Example: B enters, and then A reserves 7. B's
            # entry was sent before A's announcement of 7, so A receives the entry first. When 7 comes back, A knows B and
            # does not pass B's IDs. For a reader without active writers, all writers are retired, so everything that they
            # announced is complete.
            return self._echoed if self._own_name is not None else self._max_allocated_seen
        # An idle process does not count: everything that it reserves later lies above everything announced.
        return min(others, self._own_position) if self._unfinished or self._fetching else others

    def _others(self) -> int | None:
        """Returns the lowest position of the other writers, or None if there are none."""
        if not self._knows_others:
            others = [position for name, position in self._positions.items() if name != self._own_name]
            self._least_of_others, self._knows_others = min(others, default=None), True
        return self._least_of_others

    # --- what to report -------------------------------------------------------------------------------------------

    @property
    def linear(self) -> int:
        """The linear position, up to which the facts of all writers are complete."""
        with self._lock:
            return self._linear

    def position_of(self, writer: str) -> int:
        """Returns a writer's position, which is never below the linear position.

        For an unknown writer, returns the linear position.
        """
        with self._lock:
            if writer == self._own_name:
                return self._own_max
            return max(self._positions.get(writer, 0), self._retired.get(writer, 0), self._linear)

    @property
    def own_maximum(self) -> int:
        """The highest position that this process may claim.

        While the process is idle, this is the highest ID that the process has seen.
        """
        with self._lock:
            return self._own_max

    @property
    def own_minimum(self) -> int:
        """The position that this process has reached by its own IDs: none of its IDs up to this position is unfinished."""
        with self._lock:
            return self._own_position

    @property
    def announceable(self) -> int:
        """The position that this process stores and announces: the largest complete ID that the process may claim.

        So every announced position is an ID whose transaction has ended, and receivers treat this ID as complete.
        ``own_maximum`` cannot be announced: it starts at the last value of the sequence, and this ID may be pending in
        another process. The ID of a rolled-back transaction may be announced. A crash or fail-over that keeps the stored
        position then also keeps the value of the sequence.
        """
        with self._lock:
            return self._real

    @property
    def last_write(self) -> int:
        """The ID of the last fact that this process committed since the tracker began. 0 if there is none."""
        with self._lock:
            return self._last_write

    @property
    def last_rolled_back(self) -> int:
        """The largest ID that this process rolled back or left unused since the tracker began. 0 if there is none.

        No commit wrote this ID to the disk, so after a crash of the server the sequence could give out this ID again.
        """
        with self._lock:
            return self._last_rolled_back

    @property
    def raw_positions(self) -> dict[str, int]:
        """The recorded position of each writer, which may lie below the linear position.

        For this process, the recorded position is ``own_minimum``. For any other writer, it is the highest position
        that the writer announced.
        """
        with self._lock:
            return dict(self._positions)

    @property
    def pending(self) -> list[int]:
        """The IDs that this process reserved and that are not complete, in ascending order."""
        with self._lock:
            return list(self._unfinished)

    def fetches_begun_before(self, moment: float) -> list[Fetch]:
        """Returns the open requests to the sequence that began before that moment of the monotonic clock, the oldest first."""
        with self._lock:
            return [fetch for fetch in self._fetching if fetch.begun_at < moment]

    def take_counts(self) -> tuple[int, int]:
        """Returns (number of IDs completed by commit, number of IDs completed by rollback), counted since the last call."""
        with self._lock:
            counts = self._written, self._rolled_back
            self._written = self._rolled_back = 0
            return counts

    def token(self) -> VectorToken:
        """Returns the present position as a token: the linear position, and an entry for each writer that is ahead of it."""
        with self._lock:
            return VectorToken.of(self._linear, self._positions)


def _last_of_runs(numbers: list[int], bounds: list[int], settled: int) -> list[int]:
    """Shortens an ascending list: drops most of its numbers up to ``settled``.

    The ``bounds`` divide the numbers into runs. Keeps the last number of each run, the last number up to ``settled``,
    and all numbers above ``settled``.
    """
    upto = bisect_right(numbers, settled)
    ends = sorted({min(bisect_left(numbers, bound), upto) for bound in bounds} | {upto})
    return [numbers[end - 1] for end in ends if end] + numbers[upto:]


def _holds(numbers: list[int], number: int) -> bool:
    """Returns true if a sorted list contains the number."""
    index = bisect_left(numbers, number)
    return index < len(numbers) and numbers[index] == number


def _insert(numbers: list[int], more: list[int]) -> None:
    """Adds numbers to a sorted list: a few by one search each, many by sorting the list again."""
    if len(more) > _FEW:
        numbers.extend(more)
        numbers.sort()
        return
    for number in more:
        insort(numbers, number)
