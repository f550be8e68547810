"""Computes what the broadcaster sends, from snapshots of stored positions (pure).

One *round* turns a snapshot of stored positions into steps. A step announces a new writer, reads rows of a writer, or
moves a writer over a range without rows. Followers compute a linear position from the writers that they know. Two rules
follow:

* A new writer is announced before any other step of its stream. Otherwise a follower's linear position could pass facts
  of the new writer.
* A retired writer, or a writer whose row in the table of positions was deleted, moves along with the linear position.
  Otherwise the position where the writer stopped would hold back every follower for ever. A stream that has no writer
  yet is announced with an invented writer, the *stand-in*. The stand-in moves along with the linear position, too.

Assumes that the caller passes snapshots in the order in which they were taken. Assumes that the rows of a step are read
after the snapshot of the step's round was taken.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from streams.core.json_codec import encode_json
from streams.core.positions import Stored, linear_position, positions_to_show
from streams.core.queries import FollowedRow
from streams.errors import BadJson
from streams.replication.errors import UnsendableCommand
from streams.replication.protocol.commands import LINE_LIMIT_BYTES

#: The most lines in an interval, on average, that only move the retired writers of a stream. Their names are never forgotten,
#: because tokens have them: a site whose processes each have a name of their own has thousands after some years.
MOVES_PER_INTERVAL = 100


class StoredWithGeneration(Stored, Protocol):
    """A stored position of a writer, with the generation of the stream."""

    @property
    def generation(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _CombinedWriters:
    """The position under which all writers of a stream are announced together, for streams with a single announced name."""

    position: int
    generation: int
    state: str = "active"


@dataclass(frozen=True, slots=True)
class Announce:
    """A step: send a POSITION of a writer that followers do not know, or of a writer whose stream started again at 0."""

    stream: str
    writer: str
    position: int


@dataclass(frozen=True, slots=True)
class Read:
    """A step: read and send the writer's rows with after < token <= upto."""

    stream: str
    writer: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Move:
    """A step: send a POSITION that moves the writer over a range without rows."""

    stream: str
    writer: str
    previous: int
    new: int


Step = Announce | Read | Move


@dataclass(slots=True)
class Lines:
    """Encoded lines, which are the same bytes for every connection, and their counts."""

    data: bytes = b""
    count: int = 0
    facts: int = 0
    oversize: int = 0
    rows: int = 0
    """Lines that are RDATA."""


@dataclass(slots=True)
class _StreamState:
    """The state of one stream as sent to followers: the position last sent for each writer, and the linear position."""

    empty: int
    """The position of the stream without facts."""
    sent: dict[str, int] = field(default_factory=dict)
    linear: int = 1
    """The linear position of the last snapshot."""
    sent_linear: int = 1
    """The linear position of the last snapshot whose steps were carried out."""
    paced_at: float = -1e9
    generation: int = 0
    to_reset: set[str] = field(default_factory=set)
    """Writers that still have to be announced at 0, after the stream started again."""
    wants_round_at: float = math.inf


class Announcer:
    """The positions that were last sent, for every writer of every stream. It computes the next steps.

    `steps` may run in another thread, but `start` and `jump_to` must not be called meanwhile.

    Streams are announced in the order of ``streams``. ``stand_in`` is the name of the writer that is announced for a
    stream without writers. The streams ``in_memory`` are at 0 while they are empty, and may start again at 0.
    ``announced_as`` maps a stream to a single name. All writers of this stream are announced under this name, up to the
    linear position.
    """

    def __init__(
        self,
        streams: Sequence[str],
        stand_in: str,
        pace_interval_seconds: float = 0.1,
        in_memory: Collection[str] = (),
        announced_as: Mapping[str, str] | None = None,
    ) -> None:
        self._announced_as = announced_as or {}
        empty = {name: 0 if name in in_memory else 1 for name in streams}
        self._streams = {name: _StreamState(position, linear=position) for name, position in empty.items()}
        self._stand_in = stand_in
        self._pace_interval_seconds = pace_interval_seconds

    @property
    def wants_round_at(self) -> float:
        """Returns the time at which the next deferred `Move` is due, or infinity if there is none.

        The time is by the clock of the argument ``now`` of `steps`.
        """
        return min((state.wants_round_at for state in self._streams.values()), default=math.inf)

    def start(self, snapshot: Mapping[str, Mapping[str, StoredWithGeneration]]) -> None:
        """Sets the positions last sent to those of the snapshot, so that the next steps begin after these positions.

        They may be lower than before, or be none at all, in a database that was restored.
        """
        for name, state in self._streams.items():
            state.linear = state.empty
            stored = self._stored(snapshot, name, state)
            state.linear = state.sent_linear = linear_position(stored.values(), state.empty)
            state.generation, state.to_reset = _generation(stored), set()
            stand_in = self._announced_as.get(name, self._stand_in)
            state.sent = positions_to_show(stored, state.linear) or {stand_in: state.linear}

    def steps(
        self,
        snapshot: Mapping[str, Mapping[str, StoredWithGeneration]],
        now: float,
        only: Collection[str] | None = None,
    ) -> list[Step]:
        """Returns the steps, in order, that bring clients from the positions sent last to those of the snapshot.

        ``now`` is in seconds of a clock that never goes back. If ``only`` is given, returns only steps of these
        streams. After each step the caller must call `record_sent` with the position that was sent. If the caller did not send
        all rows of a `Read`, it must not carry out a later `Move` of the same writer.
        """
        steps: list[Step] = []
        for name, state in self._streams.items():
            if only is None or name in only:
                steps += self._steps_of(name, state, self._stored(snapshot, name, state), now)
        return steps

    def jump_to(self, snapshot: Mapping[str, Mapping[str, StoredWithGeneration]]) -> None:
        """Treats everything up to the snapshot as sent. Only while no client is connected."""
        for name, state in self._streams.items():
            stored = self._stored(snapshot, name, state)
            self._reset_if_restarted(state, stored)
            state.to_reset = set()
            state.linear = state.sent_linear = max(state.linear, linear_position(stored.values(), state.linear))
            for writer, target in self._with_pacers(state, stored).items():
                state.sent[writer] = max(state.sent.get(writer, 0), target)

    def record_sent(self, stream: str, writer: str, position: int) -> None:
        """Records that all lines of the writer up to ``position`` were sent."""
        state = self._streams[stream]
        state.sent[writer] = position
        state.sent_linear = state.linear  # the caller sends all steps of a round, or none
        state.to_reset.discard(writer)

    def positions(self) -> Iterator[tuple[str, str, int]]:
        for name, state in self._streams.items():
            for writer, position in sorted(state.sent.items()):
                yield name, writer, position

    def _steps_of(
        self, name: str, state: _StreamState, stored: Mapping[str, StoredWithGeneration], now: float
    ) -> Iterator[Step]:
        state.wants_round_at = math.inf
        self._reset_if_restarted(state, stored)
        # Not ``state.linear``, because the last round may have failed. Example: 1. The last round that succeeded had
        # linear position 7. 2. The snapshot of the failed round had linear position 10 and a new writer B with fact 9. B
        # was not announced. 3. If B were announced now at 10, followers would skip fact 9. So B is announced at 7 at
        # most.
        before = state.sent_linear
        state.linear = max(state.linear, linear_position(stored.values(), state.linear))
        sent = dict(state.sent)
        for writer in sorted(state.to_reset):
            yield Announce(name, writer, sent[writer])
        # A writer commits its row before it reserves its first ID. So all facts of a new writer lie above the linear
        # position of the last round. The new writer is announced at this position, before the steps of other writers move
        # followers past its facts.
        for writer in sorted(stored.keys() - sent.keys()):
            sent[writer] = min(before, stored[writer].position)
            yield Announce(name, writer, sent[writer])
        moves: list[Step] = []
        for writer, target in self._with_pacers(state, stored).items():
            end = stored[writer].position if writer in stored else 0
            if end > sent[writer]:
                yield Read(name, writer, sent[writer], end)
            if target > max(end, sent[writer]):
                moves.append(Move(name, writer, max(end, sent[writer]), target))
        if not moves:
            return
        # These writers have no facts to send, and their positions only follow the linear position. A POSITION per writer and
        # round would be too many lines. So they are sent once an interval, by a round that ``wants_round_at`` requests.
        due_at = state.paced_at + self._pace_interval_seconds * max(1.0, len(moves) / MOVES_PER_INTERVAL)
        if now >= due_at:
            state.paced_at = now
            yield from moves
        else:
            state.wants_round_at = due_at

    def _stored(
        self, snapshot: Mapping[str, Mapping[str, StoredWithGeneration]], name: str, state: _StreamState
    ) -> Mapping[str, StoredWithGeneration]:
        """Returns the stored positions of a stream's writers.

        If all writers of the stream are announced under a single name, returns one writer with this name, at the linear
        position.
        """
        stored = snapshot.get(name, {})
        if (announced := self._announced_as.get(name)) is None or not stored:
            return stored
        return {announced: _CombinedWriters(linear_position(stored.values(), state.linear), _generation(stored))}

    @staticmethod
    def _reset_if_restarted(state: _StreamState, stored: Mapping[str, StoredWithGeneration]) -> None:
        if (generation := _generation(stored)) > state.generation:
            state.generation, state.linear, state.sent_linear = generation, 0, 0
            state.sent = dict.fromkeys(state.sent, 0)
            state.to_reset = set(state.sent)

    def _with_pacers(self, state: _StreamState, stored: Mapping[str, StoredWithGeneration]) -> dict[str, int]:
        """Returns ``{writer: position to which to move it}``.

        For a writer without a stored position, the value is the linear position.
        """
        removed = dict.fromkeys(state.sent.keys() - stored.keys(), state.linear)
        return removed | positions_to_show(stored, state.linear)


def _generation(stored: Mapping[str, StoredWithGeneration]) -> int:
    return max((at.generation for at in stored.values()), default=0)


def position_line(stream: str, writer: str, previous: int, new: int) -> bytes:
    """Returns a POSITION line. Does not check the names, because they were checked when the program received them."""
    return b"POSITION %s %s %d %d\n" % (stream.encode(), writer.encode(), previous, new)


def encode_rows(step: Read, rows: Sequence[FollowedRow], reached: int, limit: int = LINE_LIMIT_BYTES) -> Lines:
    """Returns the lines that bring followers from ``step.after`` to ``reached``.

    ``rows`` are whole facts of one writer, ascending. Each row becomes an RDATA line. Only the last line of a fact has
    the token. Its other lines have the word ``batch`` there. If ``reached`` lies above the last row, or if there are no
    rows, the last line is a POSITION. If a row of a fact does not fit into a line of ``limit`` bytes, the fact is
    replaced by a POSITION whose ``prev`` is the fact's token. All followers are behind this token, so they see a gap
    and fetch the fact.
    """
    prefix = b"RDATA %s %s " % (step.stream.encode(), step.writer.encode())
    out: list[bytes] = []
    lines = Lines()
    sent_upto = step.after
    for token, group in groupby(rows, attrgetter("token")):
        fact = list(group)
        try:
            out += _fact_lines(prefix, token, fact, limit)
            lines.rows += len(fact)
        except UnsendableCommand:
            out.append(position_line(step.stream, step.writer, token, token))
            lines.oversize += 1
        sent_upto = token
        lines.facts += 1
    if reached > sent_upto:
        out.append(position_line(step.stream, step.writer, sent_upto, reached))
    lines.data = b"".join(out)
    lines.count = len(out)
    return lines


def _fact_lines(prefix: bytes, token: int, fact: Sequence[FollowedRow], limit: int) -> list[bytes]:
    try:
        *others, last = [encode_json(row.row) for row in fact]
    except BadJson as error:
        raise UnsendableCommand(f"token {token}: {error}") from error
    lines = [b"%sbatch %s\n" % (prefix, text) for text in others]
    lines.append(b"%s%d %s\n" % (prefix, token, last))
    if max(map(len, lines)) > limit + 1:
        raise UnsendableCommand(f"a row of token {token} is longer than a line of {limit} bytes")
    return lines
