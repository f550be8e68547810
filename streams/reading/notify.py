"""Receives PostgreSQL notifications: LISTEN on a direct connection, in a thread, with reconnection.

Every role that may connect can send any number of notifications. So notifications are received in portions, and no
statement runs on the connection that listens (``streams.db.driver.ListeningConnection``).

A notification may be lost. So after each (re)connection the user of a listener reads the table that the notifications are
about. Notifications without such a table may be used only where a loss is harmless.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from streams.db import driver
from streams.runtime.logs import Condition, get_logger
from streams.runtime.wake_up import WakeUp

log = get_logger(__name__)
T = TypeVar("T")
RETRY_SECONDS = 0.2
#: A connection for the queries of ``parse`` is closed after it was not used for this time.
ASKING_SECONDS = 5.0


class NotifyListener(Generic[T]):
    """A thread that receives the notifications of a channel, and calls ``on_items`` with what ``parse`` returns for them.

    A call with an empty list means that notifications may be lost, so everything must be read again. This call follows
    each (re)connection, and each call of ``on_items`` that raised an error. A subclass defines ``parse``, which must
    check the notifications, because every role that may connect can send them. ``on_items`` runs in the listener's
    thread and must be quick.
    """

    def __init__(self, channel: str, on_items: Callable[[list[T]], None], using: str | None, name: str) -> None:
        self._channel = channel
        self._on_items = on_items
        self._using = using
        self._name = name
        self._away = Condition(log, "notifications.connection_lost", "notifications.connected_again", listener=name)
        self._missed = False
        self._is_nudged = False
        self._stopping = threading.Event()
        self._connection: Any = None  # a driver.ListeningConnection once ``start`` was called
        self._connection_to_ask = driver.KeptConnection(using, f"replsite {name}")
        self._asked_at = math.inf
        self._wake_up: WakeUp | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Connects, listens and starts the thread. Raises the driver's errors if the first connection fails."""
        self._connect()
        wake_up = self._wake_up = WakeUp()
        name = f"replsite-{self._name}".replace(" ", "-")
        self._thread = threading.Thread(target=self._run, args=(wake_up,), name=name, daemon=True)
        self._thread.start()

    def received(self, notifications: Sequence[tuple[int, str]]) -> None:
        """Reacts to a portion of notifications before ``parse`` gets it. Must be quick."""

    def parse(self, notifications: Sequence[tuple[int, str]]) -> list[T]:
        """Parses and checks notifications, which are pairs (PID of the sending session, payload).

        Called in the listener's thread, and may use ``asking``. ``notifications`` is empty if nothing was received, for
        example when ``due_seconds`` have passed.
        """
        raise NotImplementedError

    @contextmanager
    def asking(self) -> Iterator[Any]:
        """Yields a cursor for the queries of ``parse``.

        The cursor's connection is closed when it was not used for ``ASKING_SECONDS``.
        """
        self._asked_at = time.monotonic()
        with self._connection_to_ask.cursor() as cursor:
            yield cursor

    @property
    def is_behind(self) -> bool:
        """True if more notifications wait in the server's queue. A notification that is sent now is received after these."""
        return bool(self._connection.is_behind)

    def due_seconds(self) -> float | None:
        """Returns the seconds after which ``parse`` is called even if nothing is received. None means never."""
        return None

    def prepare(self, cursor: Any) -> None:
        """Prepares the session of each new connection, before it listens."""

    def connected(self) -> None:
        """Reacts to a new connection that listens.

        ``on_items`` will be called next with an empty list, so the subclass may discard all notifications that it
        received before.
        """

    def lost(self) -> None:
        """Reacts to the loss of the connection. Nothing is received until ``on_items`` is called with an empty list."""

    def nudge(self) -> None:
        """Requests an immediate call of ``nudged`` in the listener's thread.

        Any thread may call this method, as often as it likes.
        """
        wake_up = self._wake_up
        if not self._is_nudged and wake_up is not None:
            self._is_nudged = True
            wake_up.ring()

    def nudged(self) -> None:
        """Reacts to a call of ``nudge``. Runs in the listener's thread."""

    def stop(self) -> None:
        """Ends the thread, waiting at most 10 s for it, and closes the connection."""
        wake_up, self._wake_up = self._wake_up, None  # not closed: the thread uses it as long as it runs
        if wake_up is not None and self._thread is not None:
            self._stopping.set()
            wake_up.ring()
            self._thread.join(timeout=10)
        self._disconnect()

    def _connect(self) -> None:
        self._connection = driver.ListeningConnection(
            self._channel, self._using, application_name=f"replsite {self._name}", prepare=self.prepare
        )
        self.connected()

    def _disconnect(self) -> None:
        self._connection_to_ask.close()
        if self._connection is not None:
            self._connection.close()

    def _run(self, wake_up: WakeUp) -> None:
        connected = True
        self._deliver([])
        while not self._stopping.is_set():
            try:
                if not connected:
                    self._connect()
                    connected = True
                    self._away.ends()
                    self._deliver([])
                self._wait_for_notifications(wake_up)
            except (OSError, ValueError, *driver.connection_lost) as error:
                if connected:
                    self._away.begins(error)
                    self.lost()
                    self._disconnect()
                connected = False
                # Without a connection a nudge is discarded, because the empty list after the reconnection replaces it.
                if driver.ready_to_read([wake_up], RETRY_SECONDS):
                    self._clear_nudge(wake_up)

    def _wait_for_notifications(self, wake_up: WakeUp) -> None:
        waits = RETRY_SECONDS if self._missed else self.due_seconds()
        if (unused := self._asked_at + ASKING_SECONDS - time.monotonic()) < math.inf:
            waits = unused if waits is None else min(waits, unused)
        ready = driver.ready_to_read([self._connection, wake_up], waits)
        if time.monotonic() >= self._asked_at + ASKING_SECONDS:
            self._asked_at = math.inf
            self._connection_to_ask.close()
        if wake_up in ready and self._clear_nudge(wake_up):
            self._call(self.nudged)
        if self._stopping.is_set():
            return
        received = self._connection.receive()
        self.received(received)
        items = self.parse(received)
        if items or self._missed:
            self._deliver(items)

    def _clear_nudge(self, wake_up: WakeUp) -> bool:
        """Empties the wake-up pipe. Returns true if ``nudge`` was called since the pipe was emptied last."""
        wake_up.hush()
        # The flag is cleared after the pipe was read. In the other order, A clears the flag, B sets it and writes a byte, and A
        # reads B's byte. From then on each nudge would find the flag set and write nothing.
        nudged, self._is_nudged = self._is_nudged, False
        return nudged

    def _deliver(self, items: list[T]) -> None:
        if self._call(lambda: self._on_items([] if self._missed else items)):
            self._missed = False

    def _call(self, callback: Callable[[], None]) -> bool:
        try:
            callback()
        except Exception as error:
            if isinstance(error, driver.database_lost) and not driver.still_works(error):
                log.warning("notifications.database_lost", listener=self._name, error=driver.explain(error))
            else:
                log.exception("notifications.callback_failed", listener=self._name)
            self._missed = True
            return False
        return True
