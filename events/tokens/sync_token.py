"""The sync token: one token for the positions in all streams that a sync answer covers (pure).

    events-m5~1.7,receipts-31,typing-57!3@k3xw9
    stream-position, …        !generation @epoch

Each part is a ``VectorToken`` of ``streams.core.tokens`` as text, under its stream's name. A stream in memory adds its
generation. The word at the end names the epoch of the database (``streams.epochs``). A client stores the token as it is,
and sends it back as ``since``.

* **A stream missing from the token** was never part of an answer to this client. ``of`` returns None, and the stream is
  answered in full, as in an initial sync. So streams may be added at any time: nothing is missed and nothing is repeated.
* **A stream in memory with another generation** was restarted, and counts as missing from the token.
* **A part for a stream that this program does not know** comes from a newer process, or the stream was removed. It is carried
  along unread, so that a process that knows the stream finds the stream's position there.
* **A position ahead of ours** comes from a process that knows more, or was made up. Callers that can wait for it do so
  (``ahead_of``). After that ``bounded_by`` lowers it to our own position. Facts may then come twice, but none is missed.
* **A token of another epoch** does not apply to the present facts. ``streams.errors.EpochChanged`` is raised, and the
  client has to sync from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from streams.core.tokens import VectorToken
from streams.errors import TokenError

LONGEST_TOKEN = 16_384
"""The most characters of a token. A longer text is refused."""
MOST_STREAMS = 64
"""The most streams in a token. A text with more is refused."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
_CARRIED = re.compile(r"[a-z0-9~.]{1,4096}(![0-9]{1,18})?\Z")
_EPOCH = re.compile(r"[a-z0-9]{1,40}\Z")

Names = Callable[[str], "Mapping[int, str] | None"]
"""A function from a stream to its writers by number. It returns None for a stream that this program does not know."""
Numbers = Callable[[str], Mapping[str, int]]
"""A function from a stream to the numbers of its writers, by name."""


@dataclass(frozen=True, slots=True)
class SyncToken:
    """A token that covers all facts up to the position of each part.

    ``generations`` has the generations of streams in memory. ``carried`` has the parts that this program cannot read,
    as text. Both are keyed by stream.
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
        """Raises ``TokenError``. The caller has to compare the token's epoch with the epoch of the database."""
        if not isinstance(text, str) or not text or len(text) > LONGEST_TOKEN:
            raise TokenError(
                f"A sync token is a text of 1 to {LONGEST_TOKEN} characters, as an answer's next_batch; got {text!r:.60}."
            )
        body, mark, epoch = text.partition("@")
        if mark and not _EPOCH.match(epoch):
            raise TokenError(f"Sync token {text[:60]!r}… cannot be read: the part after @ is no epoch.")
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
        texts = dict(self.carried)
        for stream, part in self.parts.items():
            texts[stream] = part.text(numbers(stream) if part.entries else {})
            if stream in self.generations:
                texts[stream] += f"!{self.generations[stream]}"
        body = ",".join(f"{stream}-{position}" for stream, position in sorted(texts.items()))
        return f"{body}@{self.epoch}" if self.epoch else body

    # --- parts ------------------------------------------------------------------------------------------------

    def of(self, stream: str) -> VectorToken | None:
        """Returns the position in a stream, or None if no answer to this client has included the stream."""
        return self.parts.get(stream)

    def replace(self, **parts: VectorToken) -> SyncToken:
        carried = {stream: text for stream, text in self.carried.items() if stream not in parts}
        return SyncToken({**self.parts, **parts}, self.epoch, carried, self.generations)

    def followed_by(self, now: SyncToken) -> SyncToken:
        """Returns the token to give out with an answer up to ``now``.

        Parts of streams that ``now`` does not have are carried along.
        """
        carried = {stream: text for stream, text in self.carried.items() if stream not in now.parts}
        kept = {stream: part for stream, part in self.parts.items() if stream not in now.parts}
        generations = {stream: number for stream, number in self.generations.items() if stream in kept}
        return SyncToken({**kept, **now.parts}, now.epoch, carried, {**generations, **now.generations})

    def known_to(self, now: SyncToken) -> SyncToken:
        """Returns the token without the streams in memory that were restarted since: they are answered in full."""
        old = {s for s in self.parts if s in now.parts and self.generations.get(s) != now.generations.get(s)}
        parts = {stream: part for stream, part in self.parts.items() if stream not in old}
        generations = {stream: number for stream, number in self.generations.items() if stream not in old}
        return SyncToken(parts, self.epoch, self.carried, generations)

    # --- algebra (of tokens of the same generations) --------------------------------------------------------------

    def before_or_equal(self, other: SyncToken) -> bool:
        """Returns true if ``other`` covers everything that this token covers. This is not a total order."""
        theirs = other.parts
        return all(stream in theirs and part.before_or_equal(theirs[stream]) for stream, part in self.parts.items())

    def ahead_of(self, now: SyncToken) -> dict[str, VectorToken]:
        """Returns the parts that ``now`` does not cover. An answer has to wait for their positions."""
        theirs = now.parts
        return {s: p for s, p in self.parts.items() if s in theirs and not p.before_or_equal(theirs[s])}

    def bounded_by(self, now: SyncToken) -> SyncToken:
        """Returns the token with no part ahead of ``now``. Parts of streams that ``now`` does not have stay."""
        ahead = {stream: part.intersect(now.parts[stream]) for stream, part in self.ahead_of(now).items()}
        return self.replace(**ahead) if ahead else self

    def merge(self, other: SyncToken) -> SyncToken:
        """Returns the smallest token that covers both tokens, for two processes that answered the same client."""
        parts = dict(self.parts)
        for stream, part in other.parts.items():
            parts[stream] = parts[stream].merge(part) if stream in parts else part
        carried = {s: t for s, t in {**self.carried, **other.carried}.items() if s not in parts}
        return SyncToken(parts, other.epoch or self.epoch, carried, {**self.generations, **other.generations})
