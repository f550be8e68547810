"""Limits how much a compressed source may expand, in proportion to its size (pure).

Without a limit, a file of a few kilobytes could keep a task busy for very long, with gigabytes of blank lines, of one
line, or of one event. An event has a hash and, from most servers, a signature, which no compression makes smaller. Real
histories expand about tenfold.
"""

from __future__ import annotations

__all__ = ["FREE_BYTES", "MOST_FOR_ONE", "REASON", "ExpandsTooMuch", "Expansion"]

FREE_BYTES = 64 * 1024 * 1024
"""Bytes that any source may expand to."""
MOST_FOR_ONE = 200
"""Further bytes for each byte of the source."""
REASON = "expands-too-much"


_OF_ROW = 500
"""Bytes counted for each row or line besides its content, because a million empty rows are work too."""


class ExpandsTooMuch(Exception):
    """An error for a source that expands more than any real history. The message goes to the quarantine."""


class Expansion:
    """Counter of the bytes and rows that a source has expanded to."""

    def __init__(self) -> None:
        self._bytes = self._rows = 0

    def give(self, size: int, rows: int, taken: int) -> None:
        """Adds ``size`` bytes in ``rows`` rows. ``taken`` is how many bytes of the source were read so far.

        Raises ``ExpandsTooMuch`` if the sum exceeds the limit.
        """
        self._bytes += size
        self._rows += rows
        if self._bytes + _OF_ROW * self._rows > FREE_BYTES + MOST_FOR_ONE * taken:
            raise ExpandsTooMuch(
                f"{taken:,} bytes of the file hold {self._bytes:,} in {self._rows:,} rows: no events can be packed like that. "
                "The rest is left out. If it is what it should be, unpack it and import what was in it."
            )
