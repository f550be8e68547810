"""What the broadcaster says, given stored positions and rows (pure).

One *round* turns a snapshot of stored positions into steps: announce a writer, read a writer's rows, or move a writer
whose rows need no reading. The order of steps carries two promises to followers:

- A writer that nobody was told of is announced before anything else of its stream. Whoever then computes a linear
  position from the writers it knows cannot pass the new one. It is announced at the linear position *before* it came:
  its row is committed before its first reservation, so all its facts lie above that.
- A retired writer has nothing pending, so it is said to be where the linear position is; otherwise the place where it
  stopped would hold back every follower for ever. So is a writer whose row is gone, and, on a stream that nobody has
  written yet, a stand-in that lets clients see the stream at all.

Assumes that snapshots come in the order they were taken, and that rows of a step are read after its snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from streams.core.json_codec import encode_json
from streams.core.positions import Stored, linear_position, positions_to_show
from streams.errors import BadJson
from streams.replication.errors import UnsendableCommand
from streams.replication.protocol.commands import LINE_LIMIT_BYTES

__all__ = ["Announce", "Announcer", "Lines", "Move", "Read", "Row", "Step", "encode_rows", "position_line"]


class StoredHere(Stored, Protocol):
    """A stored position with the generation of its stream."""

    @property
    def generation(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _AllWriters:
    """The writers of a stream that is announced under one name."""

    position: int
    generation: int
    state: str = "active"


class Row(Protocol):
    """A row of a fact, as `streams.reading.rows.rows_between` gives it."""

    @property
    def token(self) -> int: ...
    @property
    def row(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell of a writer that was not known before."""

    stream: str
    writer: str
    position: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read and send the writer's rows with after < token <= upto."""

    stream: str
    writer: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Move:
    """Say that the writer has nothing between the two positions."""

    stream: str
    writer: str
    previous: int
    new: int


Step = Announce | Read | Move


@dataclass(slots=True)
class Lines:
    """Encoded lines, ready for every connection."""

    data: bytes = b""
    count: int = 0
    facts: int = 0
    oversize: int = 0
    rows: int = 0
    """Lines that are RDATA."""


@dataclass(slots=True)
class _StreamState:
    """What was said of one stream: per writer up to where, and the linear position of the last snapshot.

    ``said_linear`` is that of the last snapshot whose steps were carried out: in one that failed a writer may have come that
    nobody was told of, and have written below its linear position.
    """

    sent: dict[str, int] = field(default_factory=dict)
    linear: int = 1
    said_linear: int = 1
    paced_at: float = -1e9
    generation: int = 0
    to_reset: set[str] = field(default_factory=set)
    """Writers whose followers were not told yet that the stream began anew."""
    wants_round_at: float = math.inf


class Announcer:
    """Where every writer was last said to be, and what has to be said next.

    `steps` may be called by another thread than the rest, while nobody calls `start` or `skip`.

    ``streams`` gives the order of announcements; ``stand_in`` names the writer shown for a stream that has none.
    Streams ``in_memory`` are at 0 while they are empty, and may start again. ``announced_as`` names the streams that are
    told under one name, up to their linear position.
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
        self._streams = {name: _StreamState(linear=0 if name in in_memory else 1) for name in streams}
        self._stand_in = stand_in
        self._pace_interval_seconds = pace_interval_seconds

    @property
    def wants_round_at(self) -> float:
        """When a retired writer that was left where it is has to be moved; infinity when there is none."""
        return min((state.wants_round_at for state in self._streams.values()), default=math.inf)

    def start(self, snapshot: Mapping[str, Mapping[str, StoredHere]]) -> None:
        """Begin at the stored positions; nothing earlier is ever sent."""
        for name, state in self._streams.items():
            stored = self._stored(snapshot, name, state)
            state.linear = state.said_linear = linear_position(stored.values(), state.linear)
            state.generation, state.to_reset = _generation(stored), set()
            stand_in = self._announced_as.get(name, self._stand_in)
            state.sent = positions_to_show(stored, state.linear) or {stand_in: state.linear}

    def steps(
        self, snapshot: Mapping[str, Mapping[str, StoredHere]], now: float, only: Collection[str] | None = None
    ) -> list[Step]:
        """What to do to get from what was said to the snapshot, in order; of the streams in ``only``, when given.

        `said` tells afterwards what of it was done; a `Move` must be left out when the `Read` before it was cut short.
        """
        steps: list[Step] = []
        for name, state in self._streams.items():
            if only is None or name in only:
                steps += self._of(name, state, self._stored(snapshot, name, state), now)
        return steps

    def skip(self, snapshot: Mapping[str, Mapping[str, StoredHere]]) -> None:
        """Nobody listens: go to the snapshot without a word."""
        for name, state in self._streams.items():
            stored = self._stored(snapshot, name, state)
            self._begin_anew(state, stored)
            state.to_reset = set()
            state.linear = state.said_linear = max(state.linear, linear_position(stored.values(), state.linear))
            for writer, target in self._with_pacers(state, stored).items():
                state.sent[writer] = max(state.sent.get(writer, 0), target)

    def said(self, stream: str, writer: str, position: int) -> None:
        """Lines that bring the writer to this position went out."""
        state = self._streams[stream]
        state.sent[writer] = position
        state.said_linear = state.linear
        state.to_reset.discard(writer)

    def positions(self) -> Iterator[tuple[str, str, int]]:
        """(stream, writer, position) of everything said so far, in the order of announcement."""
        for name, state in self._streams.items():
            for writer, position in sorted(state.sent.items()):
                yield name, writer, position

    def _of(self, name: str, state: _StreamState, stored: Mapping[str, StoredHere], now: float) -> Iterator[Step]:
        state.wants_round_at = math.inf
        self._begin_anew(state, stored)
        before = state.said_linear
        state.linear = max(state.linear, linear_position(stored.values(), state.linear))
        sent = dict(state.sent)
        for writer in sorted(state.to_reset):
            yield Announce(name, writer, sent[writer])
        for writer in sorted(stored.keys() - sent.keys()):
            sent[writer] = min(before, stored[writer].position)
            yield Announce(name, writer, sent[writer])
        pace_due = now >= state.paced_at + self._pace_interval_seconds
        moves: list[Step] = []
        for writer, target in self._with_pacers(state, stored).items():
            end = stored[writer].position if writer in stored else 0
            if end > sent[writer]:
                yield Read(name, writer, sent[writer], end)
            if target <= max(end, sent[writer]):
                continue
            if pace_due:
                state.paced_at = now
                moves.append(Move(name, writer, max(end, sent[writer]), target))
            else:
                state.wants_round_at = state.paced_at + self._pace_interval_seconds
        yield from moves

    def _stored(
        self, snapshot: Mapping[str, Mapping[str, StoredHere]], name: str, state: _StreamState
    ) -> Mapping[str, StoredHere]:
        """The stream's writers, or the one that is announced in their place: it is where the stream is."""
        stored = snapshot.get(name, {})
        if (announced := self._announced_as.get(name)) is None or not stored:
            return stored
        return {announced: _AllWriters(linear_position(stored.values(), state.linear), _generation(stored))}

    @staticmethod
    def _begin_anew(state: _StreamState, stored: Mapping[str, StoredHere]) -> None:
        """A stream in memory that started again: every writer is told to be at 0 before anything else of it."""
        if (generation := _generation(stored)) > state.generation:
            state.generation, state.linear, state.said_linear = generation, 0, 0
            state.sent = dict.fromkeys(state.sent, 0)
            state.to_reset = set(state.sent)

    def _with_pacers(self, state: _StreamState, stored: Mapping[str, StoredHere]) -> dict[str, int]:
        """Targets of the stored writers, and of those without a row, which only keep pace with the linear position."""
        gone = dict.fromkeys(state.sent.keys() - stored.keys(), state.linear)
        return gone | positions_to_show(stored, state.linear)


def _generation(stored: Mapping[str, StoredHere]) -> int:
    return max((one.generation for one in stored.values()), default=0)


def position_line(stream: str, writer: str, previous: int, new: int) -> bytes:
    """A POSITION line; stream and writer are names that were checked where they were given."""
    return b"POSITION %s %s %d %d\n" % (stream.encode(), writer.encode(), previous, new)


def encode_rows(step: Read, rows: Sequence[Row], reached: int, limit: int = LINE_LIMIT_BYTES) -> Lines:
    """The lines for rows of one writer, whole tokens, ascending, that reach from ``step.after`` to ``reached``.

    All rows of a token but the last carry ``batch``. A POSITION follows when more was reached than the last row, or
    when there are no rows at all. A fact with a row that no line can hold becomes a POSITION whose `prev` is its own
    token: every follower is behind that, so it fetches the fact.
    """
    prefix = b"RDATA %s %s " % (step.stream.encode(), step.writer.encode())
    out: list[bytes] = []
    lines = Lines()
    said = step.after
    for token, fact in _by_token(rows):
        try:
            out += _fact_lines(prefix, token, fact, limit)
            lines.rows += len(fact)
        except UnsendableCommand:
            out.append(position_line(step.stream, step.writer, token, token))
            lines.oversize += 1
        said = token
        lines.facts += 1
    if reached > said:
        out.append(position_line(step.stream, step.writer, said, reached))
    lines.data = b"".join(out)
    lines.count = len(out)
    return lines


def _fact_lines(prefix: bytes, token: int, fact: Sequence[Row], limit: int) -> list[bytes]:
    try:
        *others, last = [encode_json(row.row) for row in fact]
    except BadJson as error:
        raise UnsendableCommand(f"token {token}: {error}") from error
    lines = [b"%sbatch %s\n" % (prefix, text) for text in others]
    lines.append(b"%s%d %s\n" % (prefix, token, last))
    if max(map(len, lines)) > limit + 1:
        raise UnsendableCommand(f"a row of token {token} is longer than a line of {limit} bytes")
    return lines


def _by_token(rows: Sequence[Row]) -> Iterator[tuple[int, Sequence[Row]]]:
    """Neighbours with the same token, together."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].token != rows[start].token:
            yield rows[start].token, rows[start:end]
            start = end
