"""Receives the names of streams whose stored positions rose.

The looker sends these names after the COMMIT of the positions (``streams.reading.looker``). Every role that may connect can
send such a notification, and one may be lost. So a name only causes a read of the table of positions, and such reads are
limited in number. The table is also read after each (re)connection.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from streams.conf import stream_settings
from streams.core import lookup
from streams.reading import looker
from streams.reading.hints import CHANNEL, hinted_streams
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
    are not stored yet.
    """

    def __init__(
        self,
        on_streams: Callable[[list[str]], None],
        using: str | None = None,
        name: str = "reader",
        *,
        hints: bool = False,
    ) -> None:
        super().__init__(CHANNEL, on_streams, using, f"notifications {name}")
        self._waiting: set[str] = set()
        self._stored_here: deque[str] = deque()
        self._read_due = self._behind_due = 0.0
        #: When the next hint is passed on, if any is.
        self._hint_due = 0.0 if hints else math.inf
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

        Hints have turns of their own. One that comes too early is left out: the positions will be stored in a moment.
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
        ready = set[str]()
        if now >= self._hint_due:
            hinted = (name for _, payload in notifications for name in hinted_streams(payload))
            if ready := {name for name in hinted if lookup.find(name) is not None}:
                self._hint_due = now + READ_GAP_SECONDS
        if self._waiting and now >= self._read_due:
            self._read_due = now + READ_GAP_SECONDS
            ready, self._waiting = ready | self._waiting, set()
        return sorted(ready)

    def due_seconds(self) -> float | None:
        """Returns the seconds until waiting streams may be read from the table, or None if no stream waits."""
        return max(0.0, self._read_due - time.monotonic()) if self._waiting else None

    def connected(self) -> None:
        self._waiting = set()  # all positions are about to be read from the table
        looker.received(self._alias, self, None)
