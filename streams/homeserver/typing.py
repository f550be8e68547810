"""Typing notifications: the stream ``typing``, derived from a table of (room, user, until).

A row of the stream is the full list of users who type in a room. A row is appended only when this list changed. Each
process that calls ``set_typing`` runs a thread that removes users whose time is over, whichever process added them. So
the entries of a process that died are removed by other processes.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any

from django.db import Error as DjangoError
from django.db import connections, transaction

from streams import registry
from streams.catalog.models import Typing
from streams.conf import stream_settings
from streams.db.lock_holders import describe_lock_holder
from streams.db.schema_mark import marked_lock
from streams.db.snapshots import seeing_commits
from streams.errors import StreamError, UnusableFact, WriterBusy
from streams.homeserver.append import check_storable
from streams.homeserver.freeing import free_sometimes
from streams.runtime.leaving import before_leaving
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
_NOT_EXPIRED = Condition(log, "typing.not_expired", "typing.expired_again")
LONGEST_TIMEOUT_SECONDS = 120.0
_RETRY_SECONDS = 1.0

_ROOM_KEY = "SELECT " + marked_lock("'replsite.typing:' || %s")
_LOCK_FREE_ROOM = "SELECT pg_try_advisory_xact_lock(" + marked_lock("'replsite.typing:' || %s") + ")"
_TRY_AGAIN_SECONDS = 0.01
#: ``xmax = 0``: true for a row that was inserted, false for one that was updated.
_START = """
INSERT INTO streams_typinguser AS t (room_id, user_id, since, until)
VALUES (%(room)s, %(user)s, clock_timestamp(), clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (room_id, user_id) DO UPDATE SET until = excluded.until
RETURNING xmax = 0
"""
_STOP = "DELETE FROM streams_typinguser WHERE room_id = %(room)s AND user_id = %(user)s"
_EXPIRE = (
    "DELETE FROM streams_typinguser WHERE room_id = %(room)s AND until <= clock_timestamp() AND user_id <> %(but)s"
)
_LIST = (
    "SELECT user_id FROM streams_typinguser WHERE room_id = %s AND until > clock_timestamp() ORDER BY since, user_id"
)
_OVER = "SELECT DISTINCT room_id FROM streams_typinguser WHERE until <= clock_timestamp()"
_NEXT = "SELECT extract(epoch FROM min(until) - clock_timestamp())::float8 FROM streams_typinguser"


def set_typing(room_id: str, user_id: str, is_typing: bool, timeout_seconds: float = 30.0) -> int | None:
    """Stores that a user types in a room, or has stopped typing if ``is_typing`` is false.

    The user counts as typing for ``timeout_seconds`` from the last call. Returns the token of the room's new list, or
    None if the list did not change. Raises ``UnusableFact`` unless the time-out is above 0 and at most
    ``LONGEST_TIMEOUT_SECONDS``, and for an identifier that cannot be stored. Raises ``WriterBusy`` if another session
    keeps the room's lock for too long.
    """
    if not 0 < timeout_seconds <= LONGEST_TIMEOUT_SECONDS:
        raise UnusableFact(
            f"typing: a time-out of {timeout_seconds:g} s cannot be; use up to {LONGEST_TIMEOUT_SECONDS:g} s."
        )
    names = {"room_id": room_id, "user_id": user_id}
    check_storable("typing", names, names)
    using = stream_settings().database
    with seeing_commits(using), connections[using].cursor() as cursor:
        # Without this lock A adds Alice and B adds Bob to one room. Neither sees the other's uncommitted row, and the list
        # with the higher token, which followers keep, lacks one of them.
        _lock_room(cursor, room_id)
        parameters: dict[str, Any] = {"room": room_id, "user": user_id, "seconds": timeout_seconds, "but": user_id}
        cursor.execute(_EXPIRE, parameters)
        changed = cursor.rowcount > 0
        cursor.execute(_START if is_typing else _STOP, parameters)
        changed |= cursor.fetchone()[0] if is_typing else cursor.rowcount > 0
        if is_typing:
            transaction.on_commit(_EXPIRY.look, using=using)  # before the commit the thread would not see the row
        return _append_list(cursor, room_id) if changed else None


def _lock_room(cursor: Any, room_id: str) -> None:
    # A session of any role that may connect can hold this lock.
    seconds = stream_settings().lease_timeout_seconds
    deadline = time.monotonic() + seconds
    while True:
        cursor.execute(_LOCK_FREE_ROOM, [room_id])
        if cursor.fetchone()[0]:
            return
        if time.monotonic() > deadline:
            cursor.execute(_ROOM_KEY, [room_id])
            holder = describe_lock_holder(cursor, cursor.fetchone()[0])
            raise WriterBusy(
                f"typing: after {seconds:g} s another session still holds the lock of room {room_id}{holder}. Call again, "
                f"or end that session: pg_terminate_backend."
            )
        time.sleep(_TRY_AGAIN_SECONDS)


def expire_typing() -> int:
    """Removes the users whose time is over. Returns the number of rooms whose list changed.

    Rooms whose lock is held by another session are left out. The next call handles their users.
    """
    using, changed = stream_settings().database, 0
    with connections[using].cursor() as cursor:
        cursor.execute(_OVER)
        rooms = [row[0] for row in cursor.fetchall()]
    for room_id in rooms:
        with seeing_commits(using), connections[using].cursor() as cursor:
            # Tries the lock without waiting. Otherwise one session that keeps a room's lock would block all other
            # rooms.
            cursor.execute(_LOCK_FREE_ROOM, [room_id])
            if not cursor.fetchone()[0]:
                continue
            cursor.execute(_EXPIRE, {"room": room_id, "but": ""})
            if cursor.rowcount:
                _append_list(cursor, room_id)
                changed += 1
    return changed


def _append_list(cursor: Any, room_id: str) -> int:
    cursor.execute(_LIST, [room_id])
    user_ids = [row[0] for row in cursor.fetchall()]
    token: int = registry.get("typing").append(Typing(room_id=room_id, user_ids=user_ids))[0]
    free_sometimes("typing")
    return token


class _Expiry:
    """The thread that removes users whose time is over. The thread is started when a user types."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def look(self) -> None:
        """Starts or wakes the thread, after a user began to type."""
        with self._guard:
            if self._thread is None:
                self._stopping.clear()
                self._thread = threading.Thread(target=self._run, name="replsite-typing", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread and waits for it, up to ten seconds."""
        with self._guard:
            thread, self._thread = self._thread, None
            self._stopping.set()
        self._wake.set()
        if thread is not None:
            thread.join(timeout=10)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.wait(self._step())
                self._wake.clear()
        finally:
            connections.close_all()

    def _step(self) -> float | None:
        try:
            expire_typing()
            with connections[stream_settings().database].cursor() as cursor:
                cursor.execute(_NEXT)
                seconds = cursor.fetchone()[0]
            _NOT_EXPIRED.ends()
        except (DjangoError, StreamError) as error:
            _NOT_EXPIRED.begins(error)
            with suppress(DjangoError):
                connections.close_all()
            return _RETRY_SECONDS
        if seconds is None:
            connections.close_all()
            return None
        # If a user's time has been over for longer than the pause, another session holds the room's lock. Try again
        # later.
        return _RETRY_SECONDS if seconds < -_RETRY_SECONDS else max(0.01, seconds)


_EXPIRY = _Expiry()


def stop_expiry() -> None:
    _EXPIRY.stop()


def _after_fork() -> None:
    global _EXPIRY  # noqa: PLW0603 - the child has no such thread
    _EXPIRY = _Expiry()


before_leaving.append(stop_expiry)
os.register_at_fork(after_in_child=_after_fork)
