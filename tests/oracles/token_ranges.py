"""What lies between two tokens."""

from __future__ import annotations

from streams.core.tokens import VectorToken


def in_range(low: VectorToken, high: VectorToken, writer: str | None, position: int) -> bool:
    """Whether a fact lies after ``low`` and not after ``high``; rows without a writer compare with the bases."""
    return not low.covers(writer, position) and high.covers(writer, position)
