"""Turns the RDATA and POSITION commands that a follower receives into facts, moves, gaps and resets (pure).

A POSITION says that its writer has no facts between ``prev`` and ``new`` except the facts already sent. If our cursor
lies between ``prev`` and ``new``, no fact is missing. If our cursor lies below ``prev``, facts may be missing: a gap to
fetch. RDATA before the writer's first POSITION of the connection is ignored, because catch-up covers it.

Writers may join while the follower is disconnected. So the first POSITION of a stream on a connection begins a *run* of
POSITIONs, one per writer. The *start of the run* is the linear position that we had before the run:

* A writer that is new to us begins at the start of the run, because all its facts lie above the start of the run. It
  does not begin at the present linear position, which other POSITIONs of the run may have advanced. Exception: some
  streams may start again at a lower token. If a new writer has a lower position than all other writers, such a stream
  has started again.
* On a stream that is new to us, every writer of the run begins at its announced position.
* The linear position is held until another command ends the run, because the next POSITION may name a writer that is
  far behind. After `learn` it is not held, because all writers are known.

Assumes that commands come in the order in which the server sent them. Assumes that the caller calls `reached` after a
`MissingRange`, before it passes the next command.
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

#: Most tokens of received facts above the linear position that are remembered. With these tokens the linear position can
#: advance over consecutive IDs. If there are more tokens, the linear position waits until the cursors of all writers have
#: advanced.
FACTS_ABOVE_LIMIT = 100_000
#: Most memory for the rows of incomplete facts, over all writers. A fact that does not fit is fetched when it is
#: complete.
BATCHES_LIMIT_BYTES = 64 * 1024 * 1024
#: Most writers, over all streams, that a server may name. A further writer raises `TooManyWriters`.
NAMES_LIMIT = 20_000


class Ignored(enum.StrEnum):
    """The reason for ignoring a command. Ignored commands are counted by reason."""

    OWN_ECHO = "own echo"
    OTHER_STREAM = "other stream"
    BEFORE_POSITION = "before the first position"
    STALE = "already known"


@dataclass(frozen=True, slots=True)
class Fact:
    """A whole fact: its rows, in order."""

    stream: str
    instance: str
    token: int
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The move of a writer to ``token``. All facts of the writer up to ``token`` were received or fetched."""

    stream: str
    instance: str
    token: int


@dataclass(frozen=True, slots=True)
class MissingRange:
    """A range in which facts of the writer may be missing: after < token <= upto.

    The caller must fetch the facts of the range, then call `Cursors.reached`.
    """

    stream: str
    instance: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The restart of a stream at a lower token. ``instance`` is the writer whose lower position shows the restart."""

    stream: str
    instance: str
    token: int


Event = Fact | Moved | MissingRange | Reset


@dataclass(slots=True)
class _Batch:
    """The received rows of a fact whose last row was not received yet."""

    rows: list[Any] = field(default_factory=list)
    size: int = 0
    is_cut: bool = False
    """True if the batch grew too large, and its rows were discarded."""


@dataclass(slots=True)
class _StreamCursors:
    """The cursors of one stream, its linear position, and the state of the present connection.

    Usually the linear position is the minimum of the cursors. It is higher if facts above the minimum were *received*,
    and their IDs follow the minimum without a gap. A position that was only announced never raises the linear position
    above the minimum. Example: writer A may announce 7, the ID of a fact of writer B, before this fact was received.
    """

    linear: int
    cursors: dict[str, int] = field(default_factory=dict)
    facts_above: list[int] = field(default_factory=list)  # heap
    positioned: set[str] = field(default_factory=set)
    batches: dict[str, _Batch] = field(default_factory=dict)
    is_new: bool = True
    """True while the stream is known only from its first run of POSITIONs."""
    run_start: int | None = None
    """Our linear position when the present run of POSITIONs began; None outside of a run."""
    is_learned: bool = False
    """True if `Cursors.learn` was called on this connection, so that all writers are known."""
    is_held: bool = False
    """True while the linear position must not advance, because the next command may name one more writer."""

    def reset_writer(self, instance: str, token: int) -> None:
        """Sets the writer's cursor to ``token``, even if the cursor was higher. Computes the linear position again."""
        self.cursors[instance] = token
        self.linear = min(self.cursors.values())
        self.facts_above.clear()

    def reach(self, instance: str, token: int, *, is_fact: bool = False) -> None:
        """Records that all facts of the writer up to ``token`` were received.

        ``is_fact`` must be true if the writer has a fact with the token ``token``.
        """
        self.cursors[instance] = max(token, self.cursors.get(instance, 0))
        if is_fact and len(self.facts_above) < FACTS_ABOVE_LIMIT:
            heapq.heappush(self.facts_above, token)
        self.settle()

    def settle(self) -> None:
        if self.is_held:
            return
        # Writers A and B are at 5 and 7, and linear is 5. Fact 6 of A comes: A is at 6, so linear is 6. Fact 7 of B is in
        # the heap already, so linear is 7, although A was not announced at 7.
        self.linear = max(self.linear, min(self.cursors.values(), default=self.linear))
        while self.facts_above and self.facts_above[0] <= self.linear + 1:
            self.linear = max(self.linear, heapq.heappop(self.facts_above))


class Cursors:
    """The cursors of one follower over all its connections.

    ``streams`` are the streams to follow; None means all. ``own_instance`` is the name under which this process writes:
    commands about this writer are ignored. ``can_reset(stream)`` returns true if the stream may start again at a lower
    token. It must return false for our streams with durable tables.
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

    # --- known positions ------------------------------------------------------------------------------------------

    def start(self, stream: str, linear: int, positions: Mapping[str, int]) -> None:
        self._streams[stream] = _StreamCursors(linear, dict(positions), is_new=False)

    def learn(self, stream: str, writers: Iterable[str]) -> None:
        """Sets the writers of a stream to ``writers``.

        ``writers`` must be all writers of a snapshot that was taken after the server sent its positions. A writer that
        is new to us begins at the linear position, or during a run at the start of the run. A writer that is not in
        ``writers`` no longer holds the linear position back.
        """
        state, existing = self._streams[stream], set(writers)
        for writer in existing:
            self._place(state, writer)
        for writer in state.cursors.keys() - existing:
            del state.cursors[writer]
            self._names -= 1  # otherwise a writer that is named on every connection would be counted each time
        state.is_learned, state.is_held = True, False
        state.settle()

    def begin_connection(self) -> None:
        """Prepares for a new connection. Discards incomplete facts, and forgets which writers had a POSITION."""
        for state in self._streams.values():
            state.positioned.clear()
            state.batches.clear()
            state.run_start, state.is_new = None, False
            state.is_learned = state.is_held = False
        self._batches_bytes, self._held = 0, None

    def reached(self, stream: str, instance: str, token: int) -> None:
        self._streams[stream].reach(instance, token)

    def rewind(self, stream: str, instance: str) -> None:
        """Sets the writer's cursor to 0. Called after a `Reset`, before the facts of the restarted stream are fetched."""
        self._streams[stream].reset_writer(instance, 0)

    # --- commands of the server -----------------------------------------------------------------------------------

    def apply(self, command: Position | RData) -> Event | None:
        """Applies a command, and returns the event that follows from it.

        Returns None if the command is ignored, or if it is not the last row of its fact. When a `Fact`, `Moved` or
        `Reset` is returned, the writer's cursor has moved already. After a `MissingRange`, the caller moves the cursor
        by `reached`. Raises `TooManyWriters`.
        """
        # This check comes before commands are ignored, because a command of an unwanted stream ends the run as well.
        if self._held is not None and not (isinstance(command, Position) and command.stream == self._held):
            self.end_run()
        if self._wanted is not None and command.stream not in self._wanted:
            return self._ignore(Ignored.OTHER_STREAM)
        if command.instance == self._own_instance:
            return self._ignore(Ignored.OWN_ECHO)
        return self._apply_position(command) if isinstance(command, Position) else self._apply_rdata(command)

    def end_run(self) -> None:
        """Ends the run of first POSITIONs, so that the linear position may advance. Called when another command arrives."""
        if self._held is not None:
            state = self._streams[self._held]
            state.is_held = False
            state.settle()
            self._settled.add(self._held)
            self._held = None

    def settled(self) -> set[str]:
        """Returns the streams whose run of POSITIONs ended since the last call of this method."""
        settled, self._settled = self._settled, set()
        return settled

    def _apply_position(self, command: Position) -> Event | None:
        state = self._streams.get(command.stream)
        if state is None or command.instance not in state.cursors:
            self._names += 1
            if self._names > NAMES_LIMIT:
                raise TooManyWriters(
                    f"The server has named more than {NAMES_LIMIT} writers of streams, which none of ours does. See who it is, "
                    f"or follow only some of its streams."
                )
        if state is None:
            state = self._streams[command.stream] = _StreamCursors(command.new)
        self._follow_run(state, command)
        self._end_batch(state, command.instance)
        state.positioned.add(command.instance)
        is_known = command.instance in state.cursors
        cursor = self._place(state, command.instance)
        if command.new < cursor:
            return self._apply_lower(command, state, is_known)
        if command.previous <= cursor:
            self.reached(command.stream, command.instance, command.new)
            return Moved(command.stream, command.instance, command.new)
        return MissingRange(command.stream, command.instance, cursor, command.new)

    def _follow_run(self, state: _StreamCursors, command: Position) -> None:
        """Begins, continues or ends the stream's run of first POSITIONs (see the module's docstring)."""
        if not state.positioned:
            state.run_start = state.linear
            # Example: our linear position is 5. The server names A at 9, and then B, which is new to us, at 6. If linear
            # were not held, it would be 9 after A, and B's facts 7 to 9 would later be delivered below the linear
            # position.
            if not state.is_learned and not state.is_new:
                state.is_held, self._held = True, command.stream
        elif command.instance in state.positioned:  # a run names each writer once, so this is a later POSITION
            state.run_start, state.is_new = None, False
        if state.is_new and state.run_start is not None:
            state.reset_writer(command.instance, command.new)

    def _apply_lower(self, command: Position, state: _StreamCursors, is_known: bool) -> Event | None:
        """Handles a POSITION below the writer's cursor: the stream started again, or the POSITION is stale.

        A stream with a durable table never goes back. So its POSITION is stale: the server has read less of the table
        than this follower. Any other stream may have started again. If we know the writer, the lower POSITION proves
        that the stream has started again. If the writer is new to us, the POSITION proves this only if it is below the
        positions of all other writers. The position of a writer that has just joined the stream is never below all
        others.
        """
        in_run = state.run_start is not None
        is_lowest = in_run and command.new < min(state.cursors.values())
        if not (is_known or is_lowest) or not self._can_reset(command.stream):
            if not is_known:
                # The new writer's cursor was set to the linear position of the other writers. The new writer's pending
                # facts lie above ``command.new``, but may lie below the linear position. With the higher cursor these
                # facts would be ignored as stale.
                state.cursors[command.instance] = command.new
            return self._ignore(Ignored.STALE)
        state.reset_writer(command.instance, command.new)
        if in_run:
            state.run_start = 0  # the stream started again, so the run's further new writers have facts from 0 on
        return Reset(command.stream, command.instance, command.new)

    def _apply_rdata(self, command: RData) -> Event | None:
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
            return MissingRange(command.stream, command.instance, cursor, command.token)
        state.reach(command.instance, command.token, is_fact=True)
        return Fact(command.stream, command.instance, command.token, (*batch.rows, command.row))

    def _collect(self, state: _StreamCursors, command: RData) -> None:
        """Adds a row to the writer's incomplete fact.

        If the incomplete facts exceed the memory limit, the rows of this fact are discarded. When the last row of the
        fact arrives, `_apply_rdata` returns a `MissingRange`, so that the caller fetches the fact.
        """
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

    @staticmethod
    def _place(state: _StreamCursors, writer: str) -> int:
        """Returns the writer's cursor.

        If the writer is new to us, first sets its cursor to the linear position, or during a run to the start of the
        run.
        """
        if writer not in state.cursors:
            state.cursors[writer] = state.linear if state.run_start is None else state.run_start
        return state.cursors[writer]

    def _ignore(self, reason: Ignored) -> Event | None:
        self.ignored[reason] += 1
        return None

    # --- positions ------------------------------------------------------------------------------------------------

    def knows(self, stream: str) -> bool:
        return stream in self._streams

    def is_starting(self, stream: str) -> bool:
        return stream in self._streams and self._streams[stream].is_new

    def linear(self, stream: str) -> int:
        """Returns the position up to which every fact of the stream was received, of all writers."""
        return self._streams[stream].linear

    def positions(self) -> dict[str, dict[str, int]]:
        """Returns ``{stream: {writer: position}}``.

        A position is the writer's cursor. If the cursor is below the linear position, it is the linear position.
        """
        return {
            stream: {writer: max(cursor, state.linear) for writer, cursor in state.cursors.items()}
            for stream, state in self._streams.items()
        }
