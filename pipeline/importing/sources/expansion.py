"""How much a compressed source may give: in proportion to its size, so that a small file cannot keep a task busy for ever (pure).

An event has a hash and, of most servers, a signature, which no compression makes smaller: real histories give some 10 bytes for
one. A few kilobytes that give gigabytes of blank lines, of one line or of the same event hold nothing to import.
"""

from __future__ import annotations

__all__ = ["FREE_BYTES", "MOST_FOR_ONE", "REASON", "ExpandsTooMuch", "Expansion"]

FREE_BYTES = 64 * 1024 * 1024
"""So much any source may give."""
MOST_FOR_ONE = 200
"""And so much more for each of its own bytes."""
REASON = "expands-too-much"


_OF_ROW = 500
"""A row or line counts as so many bytes more: a million empty ones is work, too."""


class ExpandsTooMuch(Exception):
    """The source is no likely history; the words are for the quarantine."""


class Expansion:
    """What a source has given so far."""

    def __init__(self) -> None:
        self._bytes = self._rows = 0

    def give(self, size: int, rows: int, taken: int) -> None:
        """So much more, with so many bytes of the source read by now. Raises ``ExpandsTooMuch``."""
        self._bytes += size
        self._rows += rows
        if self._bytes + _OF_ROW * self._rows > FREE_BYTES + MOST_FOR_ONE * taken:
            raise ExpandsTooMuch(
                f"{taken:,} bytes of the file hold {self._bytes:,} in {self._rows:,} rows: no events can be packed like that. "
                "The rest is left out. If it is what it should be, unpack it and import what was in it."
            )
