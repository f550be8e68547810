"""Stored positions, as the last read of their table and the notifications since then give them.

A notification with a position was sent by the session of its writer's lock
(``streams.reading.pokes.NotificationFilter``), in the commit that stores the position. So the position of a known writer
need not be read again, which saves a round trip between a commit and its followers. In all other cases the table is read:
a notification without a position, of an unknown or retired writer, or below the known position; and every one of a stream
whose generation may change, because a late one could be of the last generation.

Notifications must be applied in commit order, without gaps. Otherwise a returning writer's notification could be applied
after a later one, when followers were already told that it has no facts there. A caller that may have lost one calls
``forget``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from streams.core.positions import RETIRED
from streams.reading.pokes import PositionNotification
from streams.reading.rows import StoredPosition

__all__ = ["PositionCache"]


class PositionCache:
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

    def hear(self, pokes: Iterable[PositionNotification], wanted: Collection[str] = ()) -> set[str]:
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
