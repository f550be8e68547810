"""Hearing NOTIFY: LISTEN on a direct connection, in a thread, with reconnection.

A notification may be lost: whoever listens also looks at the table that it is about after each (re)connection. What has no
table must be harmless to lose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from streams.db import driver
from streams.runtime.logs import Condition, get_logger
from streams.runtime.wake_up import WakeUp

__all__ = ["NotifyListener"]

log = get_logger(__name__)
T = TypeVar("T")
RETRY_SECONDS = 0.2


class NotifyListener(Generic[T]):
    """Calls ``on_heard`` with what was heard, and with an empty list after each (re)connection ("look at everything").

    A subclass says in ``take`` what notifications mean: every role that may connect can send them. The callback runs in the
    listener's thread and must be quick. ``start`` raises when the first connection fails.
    """

    def __init__(self, channel: str, on_heard: Callable[[list[T]], None], using: str | None, name: str) -> None:
        self._channel = channel
        self._on_heard = on_heard
        self._using = using
        self._name = name
        self._away = Condition(log, "notifications.connection_lost", "notifications.connected_again", listener=name)
        self._missed = False
        self._is_nudged = False
        self._stopping = threading.Event()
        self._connection: Any = None
        self._wake_up: WakeUp | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Connect, listen and start the thread."""
        self._connect()
        wake_up = self._wake_up = WakeUp()
        name = f"replsite-{self._name}".replace(" ", "-")
        self._thread = threading.Thread(target=self._run, args=(wake_up,), name=name, daemon=True)
        self._thread.start()

    def take(self, heard: Sequence[tuple[int, str]]) -> list[T]:
        """What notifications, as (sending session, payload), mean; in the listener's thread, which may use its connection."""
        raise NotImplementedError

    def due_seconds(self) -> float | None:
        """When ``take`` is to be called though nothing is heard; None: never."""
        return None

    def connected(self) -> None:
        """A (new) connection listens: what was heard on an earlier one is covered by the look at everything."""

    def lost(self) -> None:
        """The connection was lost: nothing is heard until ``on_heard`` is called with an empty list."""

    def nudge(self) -> None:
        """Have ``nudged`` called in the listener's thread; from any thread, at once, as often as one likes."""
        wake_up = self._wake_up
        if not self._is_nudged and wake_up is not None:
            self._is_nudged = True
            wake_up.ring()

    def nudged(self) -> None:
        """Called in the listener's thread after ``nudge``."""

    def stop(self) -> None:
        """End the thread and close the connection."""
        wake_up, self._wake_up = self._wake_up, None  # the thread keeps it as long as it runs
        if wake_up is not None and self._thread is not None:
            self._stopping.set()
            wake_up.ring()
            self._thread.join(timeout=10)
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> None:
        self._connection = driver.direct_connection(self._using, application_name=f"replsite {self._name}")
        with self._connection.cursor() as cursor:
            cursor.execute(f"LISTEN {driver.channel(cursor, self._channel)}")
        self.connected()

    def _run(self, wake_up: WakeUp) -> None:
        connected = True
        self._tell([])
        while not self._stopping.is_set():
            try:
                if not connected:
                    self._connect()
                    connected = True
                    self._away.ends()
                    self._tell([])
                self._hear(wake_up)
            except (OSError, ValueError, *driver.connection_gone) as error:
                if connected:
                    self._away.begins(error)
                    self.lost()
                connected = False
                if driver.ready_to_read([wake_up], RETRY_SECONDS):
                    self._take_nudge(wake_up)

    def _hear(self, wake_up: WakeUp) -> None:
        waits = RETRY_SECONDS if self._missed else self.due_seconds()
        if self._connection.notifies:
            waits = 0.0  # they came with the answer to a question, so the socket is silent
        ready = driver.ready_to_read([self._connection, wake_up], waits)
        if wake_up in ready and self._take_nudge(wake_up):
            self._call(self.nudged)
        if self._stopping.is_set():
            return
        self._connection.poll()
        given = [(notify.pid, notify.payload) for notify in self._connection.notifies]
        self._connection.notifies.clear()
        heard = self.take(given)
        if heard or self._missed:
            self._tell(heard)

    def _take_nudge(self, wake_up: WakeUp) -> bool:
        """Empty the pipe; whether somebody nudged."""
        wake_up.hush()
        nudged, self._is_nudged = self._is_nudged, False  # after the read: a later nudge writes again
        return nudged

    def _tell(self, heard: list[T]) -> None:
        """Call back; when that fails, listening goes on and the next call says "look at everything"."""
        if self._call(lambda: self._on_heard([] if self._missed else heard)):
            self._missed = False

    def _call(self, back: Callable[[], None]) -> bool:
        try:
            back()
        except Exception:
            log.exception("notifications.callback_failed", listener=self._name)
            self._missed = True
            return False
        return True
