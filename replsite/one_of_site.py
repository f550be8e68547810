"""A thread that each serving process has, and that works in one of them: in the process that holds a session lock.

If that process ends, or loses its connection, the thread of another one takes the lock and goes on.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from django.db import Error as DjangoError
from django.db import connections

from streams.conf import stream_settings
from streams.db import driver
from streams.db.schema_mark import marked_lock
from streams.reading.trust import stranger_with_lock
from streams.runtime.logs import Condition

_TRY_LOCK = f"SELECT pg_try_advisory_lock(key), key FROM (SELECT {marked_lock('%s')} AS key) AS of_site"


class OneOfSite:
    """A thread that calls ``work`` every ``step_seconds``, in the one process of the site that holds the lock.

    Errors of the database, and defects, end neither the thread nor the process: ``paused`` logs them, and the next step tries
    again.
    """

    def __init__(self, name: str, lock: str, step_seconds: float, paused: Condition) -> None:
        self._name, self._lock, self._step_seconds, self._paused = name, lock, step_seconds, paused
        self._using = stream_settings().database
        self._stopping = threading.Event()
        self._connection: Any = None
        self._thread = threading.Thread(target=self._run, name=f"replsite-{name}", daemon=True)

    def work(self) -> None:
        """Makes a step. It begins with ``holds_lock``."""
        raise NotImplementedError

    def connected(self, cursor: Any, *, is_held: bool) -> None:
        """Called with each new connection, after it has tried to take the lock."""

    def failed(self) -> None:
        """Called after a step that the database has failed. The lock is given up by then."""

    def log_defect(self) -> None:
        """Called in the handler of an error of the program, which is logged once until a step succeeds."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the thread. It makes the first step at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, and waits for the step in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
                # Waits until the next multiple of the step by the clock, so that the steps of all processes coincide.
                self._stopping.wait(self._step_seconds - time.time() % self._step_seconds)
        finally:
            self.close()
            connections.close_all()  # this thread's own

    def step(self) -> None:
        try:
            self.work()
            self._paused.ends()
        except (DjangoError, driver.DatabaseError) as error:
            self._paused.begins(error)
            self.close()
            self.failed()
        except Exception as error:  # noqa: BLE001 - a defect in one step must not end the work of this process
            if not self._paused.is_on:
                self.log_defect()
            self._paused.begins(error)
            self.close()

    @property
    def cursor(self) -> Any:
        """A new cursor on the connection that holds the lock."""
        return self._connection.cursor()

    def holds_lock(self) -> bool:
        """Takes the lock if it is free. Returns true if this process holds it, which it does until its connection closes.

        Raises ``DatabaseError`` if a session holds it whose role may not write: every role that may connect can take it, and
        nobody would work.
        """
        if self._connection is None:
            self._connection = driver.direct_connection(self._using, application_name=f"replsite {self._name}")
            with self.cursor as cursor:
                cursor.execute(_TRY_LOCK, [self._lock])
                is_held, key = cursor.fetchone()
                self.connected(cursor, is_held=is_held)
                stranger = "" if is_held else stranger_with_lock(cursor, key)
            if not is_held:
                self.close()
            if stranger:
                raise driver.DatabaseError(
                    f"{stranger} holds the lock {self._lock!r}, so no process of the site works at this, and that role may not "
                    f"write. End it: pg_terminate_backend"
                )
        return self._connection is not None

    def close(self) -> None:
        """Closes the connection, and so gives up the lock."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(driver.DatabaseError):
                connection.close()
