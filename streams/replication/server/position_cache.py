"""Stored positions as the last look at their table and the pokes since then tell them.

A poke with a position was said by the session of its writer's lock (``streams.reading.pokes.PokeJudge``), in the commit that
stores it, and pokes come in the order of commits. So the position of a known writer need not be read again when a poke has
brought it: a round trip less between a commit and its followers. Whatever else happened (a writer came or went) comes as a poke
without a position, of an unknown or retired writer, or below what is known, and is looked up. So is every poke of a stream that
may begin anew: a late one could be of its last life.

Assumes that pokes are given in the order in which they came, and none is left out: one of a writer that came back, believed
after one of a later commit, would find followers told already that this writer has nothing up to there. Whoever may have
lost one says so with ``forget``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from streams.core.positions import RETIRED
from streams.reading.pokes import Poke
from streams.reading.rows import StoredPosition

__all__ = ["HeardPositions"]


class HeardPositions:
    """What is known of all streams; for one thread at a time."""

    def __init__(self, may_begin_anew: Collection[str] = ()) -> None:
        self._may_begin_anew = frozenset(may_begin_anew)
        self._known: dict[str, dict[str, StoredPosition]] = {}

    @property
    def known(self) -> Mapping[str, Mapping[str, StoredPosition]]:
        """All that is known."""
        return self._known

    def forget(self) -> None:
        """A poke may be lost, or a look has failed: nothing is known any more."""
        self._known = {}

    def looked(self, found: Mapping[str, dict[str, StoredPosition]], only: Collection[str] | None) -> None:
        """The table says this, of all streams or of those in ``only``."""
        if only is None:
            self._known = dict(found)
        else:
            self._known.update({stream: found.get(stream, {}) for stream in only})

    def hear(self, pokes: Iterable[Poke], wanted: Collection[str] = ()) -> set[str]:
        """Take over what pokes say; the streams that have to be looked up nevertheless, of ``wanted`` the unknown ones, too."""
        unclear = set(wanted) - self._known.keys()
        for poke in pokes:
            known = self._known.get(poke.stream, {}).get(poke.writer)
            is_told = known is not None and known.state != RETIRED and poke.stream not in self._may_begin_anew
            if known is None or not is_told or poke.position is None or poke.position < known.position:
                unclear.add(poke.stream)
            else:
                self._known[poke.stream][poke.writer] = replace(known, position=poke.position)
        return unclear

    def of(self, streams: Collection[str]) -> dict[str, dict[str, StoredPosition]]:
        """What is known of these streams."""
        return {stream: self._known.get(stream, {}) for stream in streams}
