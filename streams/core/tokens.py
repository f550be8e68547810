"""Tokens: places in a stream, with one position for all writers, and a higher position for each writer that is ahead (pure).

In its text form a token names each writer by a small number. The caller passes the mapping between the numbers and the
writers' names. A token of a room (``RoomToken``) may contain a negative position, that of a backfilled event
(``t5--7``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from streams.errors import TokenError

_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
_ENTRY_LIMIT = 10_000


def _integer(text: str, whole: str) -> int:
    if not _INTEGER.match(text):
        raise TokenError(f"Token {whole[:100]!r} cannot be read: {text[:40]!r} is not a number.")
    return int(text)


def _position(text: str, whole: str) -> int:
    position = _integer(text, whole)
    if position < 0:
        raise TokenError(f"Token {whole[:100]!r} cannot be read: a position is never negative here.")
    return position


@dataclass(frozen=True, slots=True)
class VectorToken:
    """A place in a stream: after all facts up to ``base``, and after each writer's facts up to its position in ``entries``.

    Every entry must lie above the base. Raises ``TokenError`` otherwise.
    """

    base: int
    entries: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for writer, position in self.entries.items():
            if position <= self.base:
                raise TokenError(
                    f"A token with base {self.base} cannot have writer {writer!r} at {position}: entries must lie above the base."
                )
        object.__setattr__(self, "entries", MappingProxyType(dict(self.entries)))

    def __hash__(self) -> int:
        return hash((self.base, frozenset(self.entries.items())))

    # --- making -----------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, base: int, positions: Mapping[str, int]) -> VectorToken:
        """Makes a token from a linear position and the writers' positions. Positions at or below ``base`` are left out."""
        return cls(base, {writer: position for writer, position in positions.items() if position > base})

    @classmethod
    def parse(cls, text: str, names: Mapping[int, str]) -> VectorToken:
        """Parses ``m{base}~{number}.{position}…`` or a plain number. ``names`` maps the writers' numbers to their names.

        Also accepts an empty list of entries (``m5``, ``m5~``) and a trailing ``~``, which old programs wrote. Raises
        ``TokenError`` if the text cannot be read.
        """
        if not text.startswith("m"):
            return cls(_position(text, text))
        base, _, rest = text[1:].partition("~")
        parts = rest.removesuffix("~").split("~") if rest else []
        if len(parts) > _ENTRY_LIMIT:
            raise TokenError(f"Token {text[:100]!r}… has {len(parts)} entries; at most {_ENTRY_LIMIT} are read.")
        entries: dict[str, int] = {}
        for part in parts:
            number, dot, position = part.partition(".")
            if not dot:
                raise TokenError(f"Token {text[:100]!r} cannot be read: {part[:40]!r} is not WRITER.POSITION.")
            writer = names.get(_integer(number, text))
            if writer is None:
                raise TokenError(
                    f"Token {text[:100]!r} names writer {number[:40]}, which this site has never given out."
                )
            if writer in entries:  # which of the two positions is meant?
                raise TokenError(f"Token {text[:100]!r} names writer {number[:40]} twice.")
            entries[writer] = _position(position, text)
        return cls(_position(base, text), entries)

    def text(self, numbers: Mapping[str, int]) -> str:
        """Returns the token's text form: a plain number if the token has no entries, else the base and the entries.

        ``numbers`` maps writers' names to their numbers. Entries are sorted by these numbers.
        """
        if not self.entries:
            return str(self.base)
        pairs = sorted((numbers[writer], position) for writer, position in self.entries.items())
        return f"m{self.base}" + "".join(f"~{number}.{position}" for number, position in pairs)

    def __str__(self) -> str:
        """The writers have their names, for people and logs."""
        return ", ".join([str(self.base), *(f"{writer} {at}" for writer, at in sorted(self.entries.items()))])

    # --- algebra ----------------------------------------------------------------------------------------------

    def position_of(self, writer: str | None) -> int:
        """Returns the position up to which the token covers that writer. If ``writer`` is None, returns the base."""
        return self.base if writer is None else self.entries.get(writer, self.base)

    @property
    def highest(self) -> int:
        return max([self.base, *self.entries.values()])

    def covers(self, writer: str | None, position: int) -> bool:
        """Returns true if a fact that this writer appended at ``position`` lies at or before the token."""
        return position <= self.position_of(writer)

    def before_or_equal(self, other: VectorToken) -> bool:
        """Returns true if ``other`` covers everything that this token covers.

        Tokens have no total order: it may be that neither of two tokens covers the other.
        """
        writers = {*self.entries, *other.entries}
        return self.base <= other.base and all(self.position_of(w) <= other.position_of(w) for w in writers)

    def merge(self, other: VectorToken) -> VectorToken:
        """Returns the smallest token that covers everything that either of the two tokens covers."""
        writers = {*self.entries, *other.entries}
        positions = {w: max(self.position_of(w), other.position_of(w)) for w in writers}
        return VectorToken.of(max(self.base, other.base), positions)

    def intersect(self, other: VectorToken) -> VectorToken:
        """Returns the largest token that covers only what both tokens cover."""
        writers = {*self.entries, *other.entries}
        positions = {w: min(self.position_of(w), other.position_of(w)) for w in writers}
        return VectorToken.of(min(self.base, other.base), positions)

    def bounded_by(self, limit: int) -> VectorToken:
        return VectorToken.of(min(self.base, limit), {w: min(p, limit) for w, p in self.entries.items()})

    def after_partial_read(self, high: VectorToken, last_read: int) -> VectorToken:
        """Returns the token from which to continue after a read that ended early.

        The read was to go from this token to ``high``, in ascending order of ID, and ended at the ID ``last_read``.
        """
        # Not ``last_read`` as base: it may lie above ``high.base``. A is at 9, B at 5, and the read ended at A's 9. With base 9,
        # B's facts 6 to 8 would be skipped.
        base = max(self.base, min(last_read, high.base))
        writers = {*self.entries, *high.entries}
        positions = {w: max(self.position_of(w), min(last_read, high.position_of(w))) for w in writers}
        return VectorToken.of(base, positions)


@dataclass(frozen=True, slots=True)
class RoomToken:
    """A token of the stream of room events, in one of three text forms.

    ``s{base}`` and ``m{base}~…`` are places in the stream. ``t{topological}-{stream}`` is a place in the topological
    ordering of a room.
    """

    stream: VectorToken
    topological: int | None = None

    @classmethod
    def parse(cls, text: str, names: Mapping[int, str]) -> RoomToken:
        """Parses any of the three text forms of the class. Raises ``TokenError`` for other texts."""
        kind, rest = text[:1], text[1:]
        if kind == "s":
            return cls(VectorToken(_integer(rest, text)))
        if kind == "m":
            return cls(VectorToken.parse(text, names))
        if kind == "t":
            topological, dash, stream = rest.partition("-")
            if dash:
                return cls(VectorToken(_integer(stream, text)), _integer(topological, text))
        raise TokenError(f"Token {text[:100]!r} cannot be read: write s5, m5~1.7 or t3-5.")

    def text(self, numbers: Mapping[str, int]) -> str:
        """Returns the shortest text form that can express the token."""
        if self.topological is not None:
            return f"t{self.topological}-{self.stream.base}"
        plain = self.stream.text(numbers)
        return plain if self.stream.entries else f"s{plain}"


def numbered(writers: Iterable[str]) -> dict[str, int]:
    """Returns a number for each writer, counting from 1 in the order of ``writers``.

    For tests and tools without a table of writers.
    """
    return {writer: number for number, writer in enumerate(writers, start=1)}
