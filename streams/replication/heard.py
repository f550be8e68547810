"""Stored positions as the last look at their table and the pokes since then tell them.

A poke is sent by the commit that stores a position, and pokes come in the order of commits. So the position of a known
writer need not be read again when a poke has brought it: a round trip less between a commit and its followers. Whatever else
happened (a writer came or went, a stream began anew) comes as a poke without a position, of an unknown writer, or below
what is known, and is looked up. Assumes that somebody looks at everything after a connection was lost, and now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from streams.pokes import Poke
from streams.positions import RETIRED
from streams.readers import StoredPosition

__all__ = ["HeardPositions"]


class HeardPositions:
    """What is known of all streams; for one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, StoredPosition]] = {}

    def looked(self, found: Mapping[str, dict[str, StoredPosition]], only: Collection[str] | None) -> None:
        """The table says this, of all streams or of those in ``only``."""
        if only is None:
            self._known = dict(found)
        else:
            self._known.update({stream: found.get(stream, {}) for stream in only})

    def hear(self, pokes: Iterable[Poke]) -> set[str]:
        """Take over what pokes say; the streams that have to be looked up nevertheless."""
        unclear: set[str] = set()
        for poke in pokes:
            known = self._known.get(poke.stream, {}).get(poke.writer)
            if known is None or known.state == RETIRED or poke.position is None or poke.position < known.position:
                unclear.add(poke.stream)
            else:
                self._known[poke.stream][poke.writer] = replace(known, position=poke.position)
        return unclear

    def of(self, streams: Collection[str]) -> dict[str, dict[str, StoredPosition]]:
        """What is known of these streams."""
        return {stream: self._known.get(stream, {}) for stream in streams}
