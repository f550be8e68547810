"""What a follower makes of RDATA and POSITION (pure): cursors per stream and writer, batches, gaps, resets.

A POSITION says that its writer has nothing between ``prev`` and ``new`` but what was sent to us. So with our cursor between
the two nothing is missing; below ``prev`` facts may be, which is a gap to fetch. RDATA before a writer's first POSITION of
the connection is passed over: catching up covers it. Two more rules, because writers may join while we look away:

- The first POSITION of a stream on a connection begins a *run* of POSITIONs, one per writer. A writer of the run that
  we have never heard of starts where our linear position was when the run began, for its facts lie above that (one that
  is below all others has begun the stream anew, if that may be); the linear position of the run's other writers must not
  count yet.
- On a stream that we know nothing of, the run itself is the start: every writer where it is said to be.
- While the run may go on, that is until another command comes, the linear position stays where it was: a writer that is
  named next may be far behind. Whoever has *learned* all writers from elsewhere need not wait.

Assumes that commands come in the order of the connection, and that a `Gap` is answered with `reached` before the next
one.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streams.replication.errors import TooManyWriters
from streams.replication.protocol.commands import Position, RData
from streams.replication.protocol.row_size import row_size

__all__ = ["Cursors", "Event", "Fact", "Gap", "Ignored", "Moved", "Reset"]


#: More facts than this above the linear position are not kept to close gaps with; the linear position then waits for
#: all writers' announcements.
FACTS_ABOVE_LIMIT = 100_000
#: Rows of unfinished facts are kept up to so much memory, over all writers; a larger fact is fetched instead.
BATCHES_LIMIT_BYTES = 64 * 1024 * 1024
#: Writers of all streams that a server may name before it is given up.
NAMES_LIMIT = 20_000


class Ignored(enum.StrEnum):
    """Why a command was passed over; counted."""

    OWN_ECHO = "own echo"
    OTHER_STREAM = "other stream"
    BEFORE_POSITION = "before the first position"
    STALE = "already known"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact came whole: its rows, in order."""

    stream: str
    instance: str
    token: int
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The writer is at `token`, and nothing of it is missing."""

    stream: str
    instance: str
    token: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Facts of the writer with after < token <= upto may be missing: fetch them, then tell `reached`."""

    stream: str
    instance: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The stream was started anew at a lower token."""

    stream: str
    instance: str
    token: int


Event = Fact | Moved | Gap | Reset


@dataclass(slots=True)
class _Batch:
    """Rows of a fact whose last row has not come yet."""

    rows: list[Any] = field(default_factory=list)
    size: int = 0
    is_cut: bool = False
    """It grew too large, and was thrown away."""


@dataclass(slots=True)
class _StreamCursors:
    """One stream: cursors, the linear position, and what belongs to the present connection.

    Linear here means *received*: a writer may announce an ID of another one before that one's fact has come to us. So
    it is the minimum of the cursors, and runs on without a gap over facts that are in our hands, never over mere
    announcements.
    """

    linear: int
    cursors: dict[str, int] = field(default_factory=dict)
    facts_above: list[int] = field(default_factory=list)  # heap
    positioned: set[str] = field(default_factory=set)
    batches: dict[str, _Batch] = field(default_factory=dict)
    is_new: bool = True
    """Nothing is known of the stream but what the present run says."""
    run_start: int | None = None
    """Our linear position when the present run of POSITIONs began; None outside of a run."""
    is_learned: bool = False
    """All writers are known on this connection."""
    is_held: bool = False
    """The next command may name one more writer."""

    def start_anew(self, instance: str, token: int) -> None:
        """The writer is where it is said to be, whatever we knew."""
        self.cursors[instance] = token
        self.linear = min(self.cursors.values())
        self.facts_above.clear()

    def reach(self, instance: str, token: int, *, is_fact: bool = False) -> None:
        """Everything of the writer up to here was received; `is_fact`: the token itself is one."""
        self.cursors[instance] = max(token, self.cursors.get(instance, 0))
        if is_fact and len(self.facts_above) < FACTS_ABOVE_LIMIT:
            heapq.heappush(self.facts_above, token)
        self.settle()

    def settle(self) -> None:
        if self.is_held:
            return
        self.linear = max(self.linear, min(self.cursors.values(), default=self.linear))
        while self.facts_above and self.facts_above[0] <= self.linear + 1:
            self.linear = max(self.linear, heapq.heappop(self.facts_above))


class Cursors:
    """The cursors of one follower over all its connections.

    ``streams``: the wanted ones, None for all. ``own_instance``: the name under which this very process writes.
    ``can_reset`` tells which streams may start anew at a lower token: those without a table of ours.
    """

    def __init__(
        self,
        streams: Collection[str] | None = None,
        own_instance: str | None = None,
        can_reset: Callable[[str], bool] = lambda stream: False,
    ) -> None:
        self._wanted = None if streams is None else frozenset(streams)
        self._own_instance = own_instance
        self._can_reset = can_reset
        self._streams: dict[str, _StreamCursors] = {}
        self._names = 0
        self._batches_bytes = 0
        self._held: str | None = None
        self._settled: set[str] = set()
        self.ignored: Counter[Ignored] = Counter()

    # --- what the caller knows ------------------------------------------------------------------------------------

    def start(self, stream: str, linear: int, positions: Mapping[str, int]) -> None:
        """Begin a stream at known cursors; a writer that is not named starts at `linear`."""
        self._streams[stream] = _StreamCursors(linear, dict(positions), is_new=False)

    def learn(self, stream: str, writers: Iterable[str]) -> None:
        """All writers that exist, from a snapshot taken after the server told its positions.

        Unknown ones start at `linear`; those that are gone no longer hold it back.
        """
        state, existing = self._streams[stream], set(writers)
        for writer in existing:
            self._place(state, writer)
        for writer in state.cursors.keys() - existing:
            del state.cursors[writer]
            self._names -= 1  # the server may name it again on every connection
        state.is_learned, state.is_held = True, False
        state.settle()

    def begin_connection(self) -> None:
        """A new connection: no stream is positioned on it, and half-received batches are void."""
        for state in self._streams.values():
            state.positioned.clear()
            state.batches.clear()
            state.run_start, state.is_new = None, False
            state.is_learned = state.is_held = False
        self._batches_bytes, self._held = 0, None

    def reached(self, stream: str, instance: str, token: int) -> None:
        """Facts of the writer up to `token` are here (fetched ones, too)."""
        self._streams[stream].reach(instance, token)

    def rewind(self, stream: str, instance: str) -> None:
        """The stream began anew, and what it holds since is about to be fetched."""
        self._streams[stream].start_anew(instance, 0)

    # --- what the server says -------------------------------------------------------------------------------------

    def take(self, command: Position | RData) -> Event | None:
        """What the command means; None when it is to be ignored. A `Fact` or `Moved` has moved the cursor already."""
        if self._held is not None and not (isinstance(command, Position) and command.stream == self._held):
            self.end_run()
        if self._wanted is not None and command.stream not in self._wanted:
            return self._ignore(Ignored.OTHER_STREAM)
        if command.instance == self._own_instance:
            return self._ignore(Ignored.OWN_ECHO)
        return self._take_position(command) if isinstance(command, Position) else self._take_rdata(command)

    def end_run(self) -> None:
        """Another command came: the run of first POSITIONs is over, and the linear position counts again."""
        if self._held is not None:
            state = self._streams[self._held]
            state.is_held = False
            state.settle()
            self._settled.add(self._held)
            self._held = None

    def settled(self) -> set[str]:
        """Streams whose run ended since the last call."""
        settled, self._settled = self._settled, set()
        return settled

    def _take_position(self, command: Position) -> Event | None:
        state = self._streams.get(command.stream)
        if state is None or command.instance not in state.cursors:
            self._count_name()
        if state is None:
            state = self._streams[command.stream] = _StreamCursors(command.new)
        self._follow_run(state, command)
        self._end_batch(state, command.instance)
        state.positioned.add(command.instance)
        is_known = command.instance in state.cursors
        cursor = self._place(state, command.instance)
        if command.new < cursor:
            return self._take_lower(command, state, is_known)
        if command.previous <= cursor:
            self.reached(command.stream, command.instance, command.new)
            return Moved(command.stream, command.instance, command.new)
        return Gap(command.stream, command.instance, cursor, command.new)

    def _follow_run(self, state: _StreamCursors, command: Position) -> None:
        """Begin, continue or end the run of first POSITIONs."""
        if not state.positioned:
            state.run_start = state.linear
            if not state.is_learned and not state.is_new:
                state.is_held, self._held = True, command.stream
        elif command.instance in state.positioned:
            state.run_start, state.is_new = None, False
        if state.is_new and state.run_start is not None:
            state.start_anew(command.instance, command.new)

    def _take_lower(self, command: Position, state: _StreamCursors, is_known: bool) -> Event | None:
        """A table does not go back: the server is only behind us. Other streams begin anew, it may be at another writer.

        A writer that has only joined is nowhere below all the others.
        """
        in_run = state.run_start is not None
        is_lowest = in_run and command.new < min(state.cursors.values())
        if not (is_known or is_lowest) or not self._can_reset(command.stream):
            if not is_known:  # what it has pending, others are beyond already
                state.cursors[command.instance] = command.new
            return self._ignore(Ignored.STALE)
        state.start_anew(command.instance, command.new)
        if in_run:
            state.run_start = 0
        return Reset(command.stream, command.instance, command.new)

    def _take_rdata(self, command: RData) -> Event | None:
        state = self._streams.get(command.stream)
        if state is None or command.instance not in state.positioned:
            return self._ignore(Ignored.BEFORE_POSITION)
        state.run_start, state.is_new = None, False
        if command.token is None:
            self._collect(state, command)
            return None
        batch, cursor = self._end_batch(state, command.instance), state.cursors[command.instance]
        if command.token <= cursor:
            return self._ignore(Ignored.STALE)
        if batch.is_cut:
            return Gap(command.stream, command.instance, cursor, command.token)
        state.reach(command.instance, command.token, is_fact=True)
        return Fact(command.stream, command.instance, command.token, (*batch.rows, command.row))

    def _collect(self, state: _StreamCursors, command: RData) -> None:
        """One more row of a fact, as long as there is room for it."""
        batch = state.batches.setdefault(command.instance, _Batch())
        if batch.is_cut:
            return
        size = row_size(command.row)
        if self._batches_bytes + size > BATCHES_LIMIT_BYTES:
            self._end_batch(state, command.instance)
            state.batches[command.instance] = _Batch(is_cut=True)
            return
        batch.rows.append(command.row)
        batch.size += size
        self._batches_bytes += size

    def _end_batch(self, state: _StreamCursors, instance: str) -> _Batch:
        batch = state.batches.pop(instance, None) or _Batch()
        self._batches_bytes -= batch.size
        return batch

    def _count_name(self) -> None:
        self._names += 1
        if self._names > NAMES_LIMIT:
            raise TooManyWriters(
                f"The server has named more than {NAMES_LIMIT} writers of streams, which none of ours does. See who it is, "
                f"or follow only some of its streams."
            )

    @staticmethod
    def _place(state: _StreamCursors, writer: str) -> int:
        """The writer's cursor; one that is new to us enters at the linear position, or at that before the run."""
        if writer not in state.cursors:
            state.cursors[writer] = state.linear if state.run_start is None else state.run_start
        return state.cursors[writer]

    def _ignore(self, reason: Ignored) -> Event | None:
        self.ignored[reason] += 1
        return None

    # --- where we are ---------------------------------------------------------------------------------------------

    def knows(self, stream: str) -> bool:
        """Whether the stream has cursors."""
        return stream in self._streams

    def is_starting(self, stream: str) -> bool:
        """Whether the run of POSITIONs goes on that tells where the stream is at all."""
        return stream in self._streams and self._streams[stream].is_new

    def linear(self, stream: str) -> int:
        """Every fact of any writer up to here was received."""
        return self._streams[stream].linear

    def positions(self) -> dict[str, dict[str, int]]:
        """Cursor per stream and writer, never below the linear position of the stream."""
        return {
            stream: {writer: max(cursor, state.linear) for writer, cursor in state.cursors.items()}
            for stream, state in self._streams.items()
        }
