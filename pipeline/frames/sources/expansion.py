"""Limits how much a compressed source may expand, in proportion to its size (pure).

Without a limit, a file of a few kilobytes could keep a task busy for very long. It could expand to gigabytes of blank
lines, to one huge line, or to copies of one event. A real event has a hash and usually a signature. Both are random
bytes, so compression cannot make them smaller. Real histories expand about tenfold.
"""

from __future__ import annotations

__all__ = ["FREE_BYTES", "MOST_FOR_ONE", "REASON", "ExpandsTooMuch", "Expansion"]

FREE_BYTES = 64 * 1024 * 1024
"""Bytes that any source may expand to."""
MOST_FOR_ONE = 200
"""The number of unpacked bytes that are allowed for each byte of the source, in addition to ``FREE_BYTES``."""
REASON = "expands-too-much"


_OF_ROW = 500
"""Bytes counted for each row or line besides its content, because a million empty rows are work too."""


class ExpandsTooMuch(Exception):
    """An error for a source that expands more than any real history. The error's text is stored in the quarantine."""


class Expansion:
    """A counter of the unpacked bytes and rows of one part of a source.

    ``parts`` is the number of parts of the source. ``FREE_BYTES`` is divided among the parts.
    """

    def __init__(self, parts: int = 1) -> None:
        # A Parquet file may claim 50,000 rows for each hundred bytes. If each of these parts had 64 MB free, a megabyte would
        # be half a terabyte.
        self._free = FREE_BYTES // max(parts, 1)
        self._bytes = self._rows = 0

    def give(self, size: int, rows: int, compressed: int) -> None:
        """Adds ``size`` unpacked bytes in ``rows`` rows to the counter. Raises ``ExpandsTooMuch`` above the limit.

        ``compressed`` is the number of compressed bytes of the source that were read so far. The limit grows with ``compressed``.
        """
        self._bytes += size
        self._rows += rows
        if self._bytes + _OF_ROW * self._rows > self._free + MOST_FOR_ONE * compressed:
            raise ExpandsTooMuch(
                f"{compressed:,} bytes of the file hold {self._bytes:,} in {self._rows:,} rows: no events can be packed like "
                "that. The rest is left out. If it is what it should be, unpack it and import what was in it."
            )
