"""The lock that gives a process the right to run a reader: a session advisory lock on the reader's name.

The lock is held on a separate database connection, which also sends heartbeats. If the connection is lost, the lock is
lost, too. The next holder begins a new lease, and a cursor can be moved only under the newest lease. So a process that
has not noticed the loss of its lock cannot store an effect a second time.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from typing import Any

from streams.conf import stream_settings
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder
from streams.errors import ReaderNameTaken
from streams.follow.part_cursors import processes
from streams.follow.stored_cursors import Owner, RetryRequest, end_lease, end_retry, new_lease, store_heartbeat
from streams.reading.reader_table import NAMED, store_readers
from streams.replication.common.command_counts import received_rdata
from streams.runtime.error_text import error_text
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
#: The time to wait for a lock that is held. If its holder was killed, the server may notice this only after a moment.
ENDING_SECONDS = 2.0
_LOCK_NOT_AVAILABLE = "55P03"
_HOLDER = "SELECT host, process_id, seen_at FROM streams_storedcursor WHERE reader = %s ORDER BY seen_at DESC LIMIT 1"

Positions = Mapping[str, Mapping[str, int]]


def reader_row_key(reader: str) -> str:
    return f"{NAMED}{reader}"


class ReaderLock:
    """The lock on a reader's name, held from ``acquire`` to ``release``.

    While the lock is held, a thread stores heartbeats. If the lock is lost, this thread sets the event ``lost`` and
    calls the function that was passed as ``lost``. The function ``positions`` must return ``{stream: {writer:
    position}}``. This mapping is stored in the reader's row in the table of readers.

    Each heartbeat also reads the requests of operators to retry dead letters (``waiting_request``). ``handled`` are the
    streams that have a handler in this process. If a request is for another stream, it is ended at once, and its result
    says that this process has no handler.
    """

    kind = "follower"
    """The kind of reader that the live page shows."""
    shared = False
    """True if other processes may hold the lock, too. Then only the last one stores that the reader has ended."""

    def __init__(
        self,
        reader: str,
        using: str,
        positions: Callable[[], Positions],
        lost: Callable[[], None] = lambda: None,
        shown_in: str | None = None,
        handled: Collection[str] = (),
    ) -> None:
        self.lost = threading.Event()
        self._when_lost = lost
        self._reader = reader
        self._using = using
        self._positions = positions
        self._handled = handled
        self._requests: Mapping[str, RetryRequest] = {}
        self._stop = threading.Event()
        self._connection: Any = None
        self._shown_on = driver.KeptConnection(shown_in or stream_settings().database, f"replsite readers {reader}")
        self._owner: Owner | None = None
        self._not_shown = Condition(log, "reader.not_shown", "reader.shown_again", reader=reader)
        self._thread = threading.Thread(target=self._beat, name=f"replsite-reader-{reader}", daemon=True)

    def acquire(self) -> Owner:
        """Locks the name and begins a lease. Raises ``ReaderNameTaken``, which names the holder, or ``DatabaseError``."""
        self._connection = driver.direct_connection(self._using, application_name=f"replsite reader {self._reader}")
        try:
            with self._connection.cursor() as cursor:
                # The lock is taken first: raising the lease of a reader that runs elsewhere would fence its process.
                hold_name(cursor, self._reader, shared=self.shared)
                who = self._reader, socket.gethostname(), os.getpid()
                self._owner, self._requests = new_lease(cursor, *who, shared=self.shared)
        except BaseException:
            self._connection.close()
            raise
        self._thread.start()
        return self._owner

    def waiting_request(self, stream: str) -> RetryRequest | None:
        """Returns the retry request that waited for the stream at the last heartbeat, or None. May be called from any thread."""
        return self._requests.get(stream)

    def release(self, errors: Mapping[str, BaseException] | None = None) -> None:
        """Ends the heartbeats and stores the end of the lease. Then closes the lock's connection, which releases the name.

        ``errors`` is ``{stream: error}`` for the streams on which an error ended the reader.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        texts = {stream: error_text(error) for stream, error in (errors or {}).items()}
        if texts or not (self.shared and self._others_run()):
            self._store_end(texts)
            self._store_row("failed" if texts else "stopped", next(iter(texts.values()), ""))
        self._shown_on.close()
        with suppress(*driver.connection_lost):
            self._connection.close()

    def _others_run(self) -> bool:
        """Returns true if other processes run the reader, too. They go on to store its heartbeats."""
        try:
            with self._connection.cursor() as cursor:
                key = driver.reader_key(cursor, self._reader)
                # The lock is released first. In the other order, the last two end together, and each leaves it to the other.
                cursor.execute("SELECT pg_advisory_unlock_shared(%s)", [key])
                return processes(cursor, key) > 0
        except driver.connection_lost:
            return False

    def _store_end(self, errors: Mapping[str, str]) -> None:
        if self._owner is None:
            return
        try:
            with self._connection.cursor() as cursor:
                end_lease(cursor, self._owner, errors)
        except driver.connection_lost:
            try:
                fresh = driver.direct_connection(self._using, application_name=f"replsite reader {self._reader}")
                with closing(fresh), fresh.cursor() as cursor:
                    end_lease(cursor, self._owner, errors)
            except driver.DatabaseError as error:
                log.warning("reader.end_not_stored", reader=self._reader, error=driver.explain(error))

    def _beat(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    with self._connection.cursor() as cursor:
                        if self._owner is not None:
                            self._requests = store_heartbeat(cursor, self._owner)
                            self._end_unhandled(cursor, self._owner)
                except driver.DatabaseError as error:
                    if not driver.still_works(error):
                        raise
                    log.debug("reader.beat_failed", reader=self._reader, error=driver.explain(error))
                self._store_row()
                self._stop.wait(stream_settings().heartbeat_seconds)
        except driver.DatabaseError as error:
            log.warning("reader.lock_lost", reader=self._reader, error=str(error).strip())
            self.lost.set()
            self._when_lost()
            # The session may not have ended yet. Closing it releases the lock in any case.
            with suppress(*driver.connection_lost):
                self._connection.close()

    def _end_unhandled(self, cursor: Any, owner: Owner) -> None:
        for stream, request in self._requests.items():
            if stream not in self._handled:
                end_retry(cursor, owner, request, "none handled: the reader's process has no handler of this stream")

    def _store_row(self, close_reason: str = "", error: str = "") -> None:
        # Errors of the database are logged and do not stop the reader.
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
                store_readers(cursor, self.kind, os.getpid(), [row])
                received_rdata.store(cursor)
        except driver.DatabaseError as refused:
            self._not_shown.begins(refused)
        else:
            self._not_shown.ends()


def hold_name(cursor: Any, reader: str, *, shared: bool = False) -> None:
    """Locks a reader's name until the database session of ``cursor`` ends. Raises ``ReaderNameTaken``, which names the holder.

    If ``shared`` is true, others may lock it so, too.
    """
    key, mode = driver.reader_key(cursor, reader), "_shared" if shared else ""
    cursor.execute(f"SELECT pg_try_advisory_lock{mode}(%s)", [key])
    if cursor.fetchone()[0]:
        return
    cursor.execute("SET lock_timeout = %s", [f"{int(ENDING_SECONDS * 1000)}ms"])
    try:
        cursor.execute(f"SELECT pg_advisory_lock{mode}(%s)", [key])
    except driver.DatabaseError as error:
        if driver.sqlstate(error) != _LOCK_NOT_AVAILABLE:
            raise
        cursor.execute(_HOLDER, [reader])
        row = cursor.fetchone()
        who = f"process {row[1]} on host {row[0]}, last seen {row[2]:%Y-%m-%d %H:%M:%S}" if row else "a process"
        raise ReaderNameTaken(
            f"Reader {reader!r} is run by {who}{describe_lock_holder(cursor, key)}. Stop that process, or give "
            f"this reader another name."
        ) from None
    finally:
        cursor.execute("SET lock_timeout = 0")
