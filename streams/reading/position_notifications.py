"""Receives the names of streams whose stored positions rose.

The looker sends these names after the COMMIT of the positions (``streams.reading.looker``). Every role that may connect can
send such a notification, and one may be lost. So a name only causes a read of the table of positions, and such reads are
limited in number. The table is also read after each (re)connection.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from streams.conf import stream_settings
from streams.core import lookup
from streams.reading import looker
from streams.reading.hints import CHANNEL, HINT_GAP_SECONDS, hinted_streams, more_follows
from streams.reading.notify import NotifyListener

__all__ = ["CHANNEL", "READ_GAP_SECONDS", "PositionListener"]

#: Least time between two reads of the table. The first read is made at once. The looker stores positions no faster than this.
READ_GAP_SECONDS = 0.004
#: While notifications wait in the server's queue, the table is read this often. So a flood delays no position for longer.
BEHIND_READ_SECONDS = 0.1


class PositionListener(NotifyListener[str]):
    """A listener that calls ``on_streams`` with the names of streams whose positions must be read from the table.

    The list is empty after each (re)connection: then all positions must be read. If ``hints`` is true, ``on_streams`` is also
    called with the streams that a hint names, for a reader that looks for itself: its facts were committed, and their positions
    are not stored yet. It is called with them again while facts without a hint may follow. Unless ``follows`` is true, positions
    may be stored a second late, and nothing of them is received before.
    """

    def __init__(
        self,
        on_streams: Callable[[list[str]], None],
        using: str | None = None,
        name: str = "reader",
        *,
        hints: bool = False,
        follows: bool = True,
    ) -> None:
        super().__init__(CHANNEL, on_streams, using, f"notifications {name}")
        self._waiting: set[str] = set()
        self._stored_here: deque[str] = deque()
        self._read_due = self._behind_due = 0.0
        self.follows = follows
        self._passes_hints = hints
        #: Hinted streams that are to be passed on, and until when facts without a hint may follow.
        self._hinted: dict[str, float] = {}
        self._hint_due = 0.0
        self._alias = using or stream_settings().database

    def start(self) -> None:
        """Starts to listen. From now on this process may be the one that looks for the site."""
        looker.register(self._alias, self)
        try:
            super().start()
        except BaseException:
            looker.leave(self._alias, self)
            raise
        looker.join(self._alias, self)

    def prepare(self, cursor: Any) -> None:
        """Has the site's looker store positions at once, from before the first read of them."""
        if self.follows:
            looker.follow(cursor)

    def stop(self) -> None:
        looker.leave(self._alias, self)
        super().stop()

    def received(self, notifications: Sequence[tuple[int, str]]) -> None:
        """Passes the notifications to the looker, which knows hints among them."""
        if notifications:
            looker.received(self._alias, self, notifications)

    def positions_stored(self, streams: Sequence[str]) -> None:
        """Makes the thread read the positions that this process has stored. Their notification, which comes later, is ignored."""
        if streams:
            self._stored_here.extend(streams)
            self.nudge()

    def parse(self, notifications: Sequence[tuple[int, str]]) -> list[str]:
        """Returns the known streams among the notifications, in turns that are ``READ_GAP_SECONDS`` apart.

        Hints have turns of their own.
        """
        names = {name for session, name in notifications if not looker.is_session(self._alias, session)}
        while self._stored_here:
            names.add(self._stored_here.popleft())
        self._waiting.update(name for name in names if lookup.find(name) is not None)
        now = time.monotonic()
        if self.is_behind and now >= self._behind_due:
            # Example: a role sends 120,000 notifications of 7.9 kB, and then positions are stored. Their notification arrives
            # seconds later, but the table has them now.
            self._behind_due = now + BEHIND_READ_SECONDS
            self._waiting.update(lookup.names())
        for payload in (payload for _, payload in notifications if self._passes_hints):
            until = now + HINT_GAP_SECONDS if more_follows(payload) else now
            for name in hinted_streams(payload):
                if lookup.find(name) is not None:
                    self._hinted[name] = max(until, self._hinted.get(name, until))
        ready = set[str]()
        if self._hinted and now >= self._hint_due:
            self._hint_due = now + READ_GAP_SECONDS
            ready, self._hinted = {*self._hinted}, {name: end for name, end in self._hinted.items() if end > now}
        if self._waiting and now >= self._read_due:
            self._read_due = now + READ_GAP_SECONDS
            ready, self._waiting = ready | self._waiting, set()
        return sorted(ready)

    def due_seconds(self) -> float | None:
        """Returns the seconds until waiting streams may be read, or None if no stream waits."""
        dues = [due for due, streams in ((self._read_due, self._waiting), (self._hint_due, self._hinted)) if streams]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def connected(self) -> None:
        self._waiting = set()  # all positions are about to be read from the table
        looker.received(self._alias, self, None)
