"""Hearing that positions moved: LISTEN on a direct connection, in a thread, with reconnection.

A poke says ``stream writer position`` at most, and may be lost: whoever listens also looks at the table of positions after
each (re)connection and now and then. It never carries facts.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streams import database
from streams.logs import get_logger

__all__ = ["CHANNEL", "Poke", "PokeListener", "poke"]

log = get_logger(__name__)
CHANNEL = "replsite_streams"
RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Poke:
    """A writer's position rose; without a position: the set of writers changed, look at the table."""

    stream: str
    writer: str
    position: int | None

    @classmethod
    def parse(cls, payload: str) -> Poke:
        """Read a NOTIFY payload; anything odd means "look at the table"."""
        parts = payload.split(" ")
        position = int(parts[2]) if len(parts) == 3 and parts[2].isdecimal() else None
        return cls(parts[0], parts[1] if len(parts) > 1 else "", position)


def poke(cursor: Any, stream: str, writer: str, position: int | None = None) -> None:
    """Tell everybody, once the cursor's transaction is committed; without a position: the set of writers changed."""
    payload = f"{stream} {writer}" if position is None else f"{stream} {writer} {position}"
    cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


class PokeListener:
    """Calls ``on_pokes`` with what was heard, and with an empty list after each (re)connection ("look at everything").

    The callback runs in the listener's thread and must be quick. ``start`` raises when the first connection fails.
    """

    def __init__(self, on_pokes: Callable[[list[Poke]], None], using: str | None = None, name: str = "reader") -> None:
        self._on_pokes = on_pokes
        self._using = using
        self._name = name
        self._missed = False
        self._stopping = threading.Event()
        self._connection: Any = None
        self._wake_read, self._wake_write = -1, -1
        self._thread = threading.Thread(target=self._run, name=f"replsite-pokes-{name}", daemon=True)

    def start(self) -> None:
        """Connect, listen and start the thread."""
        self._connect()
        self._wake_read, self._wake_write = os.pipe()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the connection."""
        if self._thread.is_alive():
            self._stopping.set()
            os.write(self._wake_write, b"s")
            self._thread.join(timeout=10)
            os.close(self._wake_read)
            os.close(self._wake_write)
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> None:
        self._connection = database.direct_connection(self._using, application_name=f"replsite pokes {self._name}")
        with self._connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")

    def _run(self) -> None:
        connected = True
        self._tell([])
        while not self._stopping.is_set():
            try:
                if not connected:
                    self._connect()
                    connected = True
                    log.info("pokes.connected_again", reader=self._name)
                    self._tell([])
                self._hear()
            except (OSError, ValueError, *database.connection_gone) as error:
                if connected:
                    log.warning("pokes.connection_lost", reader=self._name, error=str(error).strip())
                connected = False
                select.select([self._wake_read], [], [], RETRY_SECONDS)

    def _hear(self) -> None:
        ready, _, _ = select.select(
            [self._connection, self._wake_read], [], [], RETRY_SECONDS if self._missed else None
        )
        if self._wake_read in ready:
            return
        self._connection.poll()
        heard = [Poke.parse(notify.payload) for notify in self._connection.notifies]
        self._connection.notifies.clear()
        if heard or self._missed:
            self._tell(heard)

    def _tell(self, pokes: list[Poke]) -> None:
        """Call back; when that fails, listening goes on and the next call says "look at everything"."""
        try:
            self._on_pokes([] if self._missed else pokes)
            self._missed = False
        except Exception:
            log.exception("pokes.callback_failed", reader=self._name)
            self._missed = True
