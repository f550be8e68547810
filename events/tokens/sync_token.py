"""One token for the positions in all streams that a sync answer covers (pure).

    events-m5~1.7,receipts-31,typing-57!3@k3xw9
    stream-position, …        !generation @epoch

Each part is a ``VectorToken`` of ``streams.core.tokens`` in its text form, under its stream's name, and for a stream in memory
its generation; the word at the end names the life of the database (``streams.epochs``). Whoever is given a token keeps it as it
is and hands it back as ``since``.

* **A stream that is not in the token** has never been part of an answer to its keeper: ``of`` gives None, and the stream is
  answered as in an initial sync, whole. So a stream may join at any time: nothing of it is missed, and nothing repeated.
* **A stream in memory that began anew** since (another generation) counts as one that is not in the token.
* **A part of a stream that this program does not know** (a newer process made the token, or a stream was taken out) is carried
  along unread, so that the position is not lost when a process that knows it answers next.
* **A position ahead of ours** comes from a process that has heard more, or was made up. Whoever can wait waits for it
  (``ahead_of``); then ``bounded_by`` takes it back to what is known: facts may come twice then, but none is missed.
* **A token of another epoch** says nothing about the present facts: ``streams.errors.EpochChanged``, the caller syncs anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from streams.core.tokens import VectorToken
from streams.errors import TokenError

__all__ = ["LONGEST_TOKEN", "MOST_STREAMS", "SyncToken"]

LONGEST_TOKEN = 16_384
"""Characters of a token that is read."""
MOST_STREAMS = 64
"""Streams of a token that is read."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
_CARRIED = re.compile(r"[a-z0-9~.]{1,4096}(![0-9]{1,18})?\Z")
_EPOCH = re.compile(r"[a-z0-9]{1,40}\Z")

Names = Callable[[str], "Mapping[int, str] | None"]
"""Stream -> its writers by number; None: this program does not know the stream."""
Numbers = Callable[[str], Mapping[str, int]]
"""Stream -> the numbers of its writers."""


@dataclass(frozen=True, slots=True)
class SyncToken:
    """After all facts that each part covers.

    ``generations`` are those of parts in memory, ``carried`` parts that this program cannot read, both by stream.
    """

    parts: Mapping[str, VectorToken] = field(default_factory=dict)
    epoch: str = ""
    carried: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("parts", "carried", "generations"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __hash__(self) -> int:
        of_streams = self.parts, self.carried, self.generations
        return hash((self.epoch, *(frozenset(found.items()) for found in of_streams)))

    # --- text -------------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, text: object, names: Names) -> SyncToken:
        """Read a token; raises ``TokenError``. Whether its epoch is the present one is for the caller to ask."""
        if not isinstance(text, str) or not text or len(text) > LONGEST_TOKEN:
            raise TokenError(
                f"A sync token is a text of 1 to {LONGEST_TOKEN} characters, as an answer's next_batch; got {text!r:.60}."
            )
        body, mark, epoch = text.partition("@")
        if mark and not _EPOCH.match(epoch):
            raise TokenError(f"Sync token {text[:60]!r}… cannot be read: what stands behind @ is no epoch.")
        pieces = body.split(",")
        if len(pieces) > MOST_STREAMS:
            raise TokenError(f"Sync token {text[:60]!r}… has {len(pieces)} parts; at most {MOST_STREAMS} are read.")
        parts: dict[str, VectorToken] = {}
        carried: dict[str, str] = {}
        generations: dict[str, int] = {}
        for piece in pieces:
            stream, dash, position = piece.partition("-")
            if not dash or not _NAME.match(stream) or not _CARRIED.match(position):
                raise TokenError(f"Sync token {text[:60]!r}… cannot be read: {piece[:40]!r} is not STREAM-POSITION.")
            if stream in parts or stream in carried:
                raise TokenError(f"Sync token {text[:60]!r}… names stream {stream!r} twice.")
            known = names(stream)
            if known is None:
                carried[stream] = position
            else:
                position, mark, generation = position.partition("!")
                parts[stream] = VectorToken.parse(position, known)
                if mark:
                    generations[stream] = int(generation)
        return cls(parts, epoch, carried, generations)

    def text(self, numbers: Numbers) -> str:
        """Write it, streams in alphabetical order."""
        texts = dict(self.carried)
        for stream, part in self.parts.items():
            texts[stream] = part.text(numbers(stream) if part.entries else {})
            if stream in self.generations:
                texts[stream] += f"!{self.generations[stream]}"
        body = ",".join(f"{stream}-{position}" for stream, position in sorted(texts.items()))
        return f"{body}@{self.epoch}" if self.epoch else body

    # --- parts ------------------------------------------------------------------------------------------------

    def of(self, stream: str) -> VectorToken | None:
        """The position in a stream; None: the stream was never part of an answer to the token's keeper."""
        return self.parts.get(stream)

    def replace(self, **parts: VectorToken) -> SyncToken:
        """With these parts instead of its own."""
        carried = {stream: text for stream, text in self.carried.items() if stream not in parts}
        return SyncToken({**self.parts, **parts}, self.epoch, carried, self.generations)

    def followed_by(self, now: SyncToken) -> SyncToken:
        """The token of the answer that brings its keeper up to ``now``: what cannot be read here is carried along."""
        carried = {stream: text for stream, text in self.carried.items() if stream not in now.parts}
        kept = {stream: part for stream, part in self.parts.items() if stream not in now.parts}
        generations = {stream: number for stream, number in self.generations.items() if stream in kept}
        return SyncToken({**kept, **now.parts}, now.epoch, carried, {**generations, **now.generations})

    def known_to(self, now: SyncToken) -> SyncToken:
        """Without the parts that began anew since: those streams are answered whole."""
        old = {s for s in self.parts if s in now.parts and self.generations.get(s) != now.generations.get(s)}
        parts = {stream: part for stream, part in self.parts.items() if stream not in old}
        generations = {stream: number for stream, number in self.generations.items() if stream not in old}
        return SyncToken(parts, self.epoch, self.carried, generations)

    # --- algebra (of tokens of the same generations) --------------------------------------------------------------

    def before_or_equal(self, other: SyncToken) -> bool:
        """Whether ``other`` covers everything that is covered here. Not a total order."""
        theirs = other.parts
        return all(stream in theirs and part.before_or_equal(theirs[stream]) for stream, part in self.parts.items())

    def ahead_of(self, now: SyncToken) -> dict[str, VectorToken]:
        """Parts that are not covered by ``now``: what to wait for before answering."""
        theirs = now.parts
        return {s: p for s, p in self.parts.items() if s in theirs and not p.before_or_equal(theirs[s])}

    def bounded_by(self, now: SyncToken) -> SyncToken:
        """Nothing ahead of ``now``; parts of streams that ``now`` does not name stay."""
        ahead = {stream: part.meet(now.parts[stream]) for stream, part in self.ahead_of(now).items()}
        return self.replace(**ahead) if ahead else self

    def merge(self, other: SyncToken) -> SyncToken:
        """The smallest token that covers both; of two processes that answered one keeper."""
        parts = dict(self.parts)
        for stream, part in other.parts.items():
            parts[stream] = parts[stream].merge(part) if stream in parts else part
        carried = {s: t for s, t in {**self.carried, **other.carried}.items() if s not in parts}
        return SyncToken(parts, other.epoch or self.epoch, carried, {**self.generations, **other.generations})
