"""The lock that gives a process the right to run a reader: a session advisory lock on the reader's name.

The lock is held on a connection of its own, which also sends heartbeats. If the connection is lost, so is the lock. The
next holder begins a new lease, and a cursor can be moved only under the newest lease. So a process that has not noticed
the loss yet cannot store an effect a second time.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from streams.conf import stream_settings
from streams.db import driver
from streams.errors import ReaderNameTaken
from streams.follow.cursors import Owner, end_lease, sign_of_life, take_lease
from streams.reading.reader_table import NAMED, store_readers
from streams.replication.common.command_counts import received_rdata
from streams.runtime.error_text import error_text
from streams.runtime.logs import Condition, get_logger
from streams.writing.lease import describe_lock_holder

__all__ = ["ReaderLock", "hold_name", "reader_row_key"]

log = get_logger(__name__)
#: How long to wait for a lock that is held: the server may notice only after a moment that the last holder was killed.
ENDING_SECONDS = 2.0
_LOCK_NOT_AVAILABLE = "55P03"
_HOLDER = "SELECT host, process_id, seen_at FROM streams_storedcursor WHERE reader = %s ORDER BY seen_at DESC LIMIT 1"

Positions = Mapping[str, Mapping[str, int]]


def reader_row_key(reader: str) -> str:
    """Returns the key of a named reader in the table ``streams_reader``."""
    return f"{NAMED}{reader}"


class ReaderLock:
    """The lock on a reader's name, held from ``take`` to ``release``.

    Meanwhile a thread stores heartbeats. If the lock is lost, this thread sets the event ``lost`` and calls the function
    that was passed as ``lost``. The function ``positions`` must return ``{stream: {writer: position}}``, which is stored
    in the reader's row in the table of readers.
    """

    def __init__(
        self, reader: str, using: str, positions: Callable[[], Positions], lost: Callable[[], None] = lambda: None
    ) -> None:
        self.lost = threading.Event()
        self._when_lost = lost
        self._reader = reader
        self._using = using
        self._positions = positions
        self._stop = threading.Event()
        self._connection: Any = None
        self._shown_on = driver.KeptConnection(stream_settings().database, f"replsite readers {reader}")
        self._owner: Owner | None = None
        self._not_shown = Condition(log, "reader.not_shown", "reader.shown_again", reader=reader)
        self._thread = threading.Thread(target=self._beat, name=f"replsite-reader-{reader}", daemon=True)

    def take(self) -> Owner:
        """Locks the name and begins a lease. Raises ``ReaderNameTaken``, which names the holder, or ``DatabaseError``."""
        self._connection = driver.direct_connection(self._using, application_name=f"replsite reader {self._reader}")
        try:
            with self._connection.cursor() as cursor:
                # The lock is taken first: raising the lease of a reader that runs elsewhere would fence its process.
                hold_name(cursor, self._reader)
                self._owner = take_lease(cursor, self._reader, socket.gethostname(), os.getpid())
        except BaseException:
            self._connection.close()
            raise
        self._thread.start()
        return self._owner

    def release(self, errors: Mapping[str, BaseException] | None = None) -> None:
        """Ends the heartbeats, stores the end of the lease and closes the connection, which releases the name.

        ``errors`` is ``{stream: error}`` for the streams on which an error ended the reader.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        said = {stream: error_text(error) for stream, error in (errors or {}).items()}
        self._store_end(said)
        self._show("failed" if said else "stopped", next(iter(said.values()), ""))
        self._shown_on.close()
        with suppress(*driver.connection_gone):
            self._connection.close()

    def _store_end(self, errors: Mapping[str, str]) -> None:
        """Stores the end of the lease. Uses the lock's connection, or a new one if the lock's connection is gone."""
        if self._owner is None:
            return
        try:
            with self._connection.cursor() as cursor:
                end_lease(cursor, self._owner, errors)
        except driver.connection_gone:
            try:
                fresh = driver.direct_connection(self._using, application_name=f"replsite reader {self._reader}")
                with closing(fresh), fresh.cursor() as cursor:
                    end_lease(cursor, self._owner, errors)
            except driver.DatabaseError as error:
                log.warning("reader.end_not_stored", reader=self._reader, error=driver.explain(error))

    def _beat(self) -> None:
        try:
            while not self._stop.is_set():
                with self._connection.cursor() as cursor:
                    if self._owner is not None:
                        sign_of_life(cursor, self._owner)
                self._show()
                self._stop.wait(stream_settings().heartbeat_seconds)
        except driver.DatabaseError as error:
            log.warning("reader.lock_lost", reader=self._reader, error=str(error).strip())
            self.lost.set()
            self._when_lost()
            # Not every error breaks the connection. Closing it releases the lock in any case.
            with suppress(*driver.connection_gone):
                self._connection.close()

    def _show(self, close_reason: str = "", error: str = "") -> None:
        """Stores the reader's row in the table of readers. Database errors are logged and do not stop the reader."""
        row = {
            "key": reader_row_key(self._reader),
            "name": self._reader,
            "address": f"{socket.gethostname()}:{os.getpid()}",
            "positions": self._positions(),
            "close_reason": close_reason,
            "error": error,
        }
        try:
            with self._shown_on.cursor() as cursor:
                store_readers(cursor, "follower", os.getpid(), [row])
                received_rdata.store(cursor)
        except driver.DatabaseError as refused:
            self._not_shown.begins(refused)
        else:
            self._not_shown.ends()


def hold_name(cursor: Any, reader: str) -> None:
    """Locks a reader's name until the cursor's session ends. Raises ``ReaderNameTaken``, which names the holder."""
    key = driver.reader_key(cursor, reader)
    cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
    if cursor.fetchone()[0]:
        return
    cursor.execute("SET lock_timeout = %s", [f"{int(ENDING_SECONDS * 1000)}ms"])
    try:
        cursor.execute("SELECT pg_advisory_lock(%s)", [key])
    except driver.DatabaseError as error:
        if error.pgcode != _LOCK_NOT_AVAILABLE:
            raise
        cursor.execute(_HOLDER, [reader])
        row = cursor.fetchone()
        who = f"process {row[1]} on host {row[0]}, last seen {row[2]:%Y-%m-%d %H:%M:%S}" if row else "a process"
        raise ReaderNameTaken(
            f"Reader {reader!r} is run by {who}{describe_lock_holder(cursor, key)}. Stop that process, or give "
            f"this reader another name."
        ) from None
    finally:
        cursor.execute("SET lock_timeout = DEFAULT")
