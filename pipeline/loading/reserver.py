"""Reserves stream IDs for the tasks that load packs, as the job's writer. Runs in Spark's driver, and needs Django.

A thread looks for requests, reserves IDs for the transactions of the tasks (``streams.writing.reserve_for``), and
stores the IDs with the requests. Soon after such a transaction has ended, the thread notices its end, and the IDs
become complete. If the thread does not run any more, the writer's control loop notices the end of the transaction a
little later.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from django.db import connections

from pipeline.errors import LoaderFailed
from pipeline.loading import requests
from streams.db import driver
from streams.errors import StreamError, WriterFenced
from streams.runtime.logs import Condition, get_logger
from streams.writing.process import current_writer
from streams.writing.reserve_for import ReservedFor, reserve_for

__all__ = ["Reserver"]

log = get_logger(__name__)
_AGAIN_SECONDS = 0.5


class Reserver:
    """A thread that answers the requests of a job's tasks while a ``with`` block runs.

    ``writer`` is the name of this process as a writer.

    ``step`` is called with the name of each finished step. Tests use ``step`` to end the process after a step.
    """

    def __init__(self, job: int, writer: str, using: str, step: Callable[[str], None] = lambda name: None) -> None:
        self._job, self._writer, self._using, self._step = job, writer, using, step
        self._over = threading.Event()
        self._reserved: dict[int, ReservedFor] = {}
        self._failure: BaseException | None = None
        self._away = Condition(log, "load.waits", "load.goes_on")
        self._thread = threading.Thread(target=self._run, name="load reserver", daemon=True)

    def __enter__(self) -> Self:
        # Requests to this writer stay. A task of an earlier run may have sent one under the present lease, and is answered.
        with connections[self._using].cursor() as cursor:
            cursor.execute(requests.CLEAR_OTHERS, [self._job, self._writer])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the thread. Tasks that still wait for IDs then roll back."""
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Raises ``LoaderFailed`` if the thread has failed. To be called at intervals while the job waits for Spark."""
        if self._failure is not None:
            raise LoaderFailed(self._failure)

    def _run(self) -> None:
        try:
            while not self._over.wait(requests.LOOK_SECONDS):
                self._try(self._turn)
            self._try(self._leave)
        except BaseException as error:  # noqa: BLE001 - passed on to the caller of ``look``
            self._failure = error
        finally:
            connections[self._using].close()

    def _try(self, turn: Callable[[Any], None]) -> None:
        """Calls ``turn`` once. If the database cannot be reached, closes the connection. The next call opens a new connection."""
        try:
            with connections[self._using].cursor() as cursor:
                turn(cursor)
            self._away.ends(job=self._job)
        except driver.database_gone as error:
            self._away.begins(error, job=self._job)
            connections[self._using].close()
            self._over.wait(_AGAIN_SECONDS)

    def _turn(self, cursor: Any) -> None:
        """Answers new requests, and deletes the requests whose transactions have ended."""
        cursor.execute(requests.LOOK, [self._job, self._writer])
        over: list[int] = []
        for transaction, lease, counts, answered, ended in cursor.fetchall():
            if ended:
                over.append(transaction)
            elif not answered:
                self._answer(cursor, transaction, lease, json.loads(counts) if isinstance(counts, str) else counts)
        for transaction in over:
            if (reserved := self._reserved.pop(transaction, None)) is not None:
                reserved.ask()
        if over:
            self._step("ended")
            cursor.execute(requests.CLEAR, [over])

    def _answer(self, cursor: Any, transaction: int, lease: int, counts: Mapping[str, int]) -> None:
        # IDs that were reserved before are sent again: the statement with the first answer may have failed.
        reserved = self._reserved.get(transaction)
        try:
            reserved = reserved or reserve_for(transaction, self._writer, lease, counts, self._using)
        except WriterFenced:
            return  # the task notices that the lease has ended, or that the writer is gone
        except StreamError as error:
            cursor.execute(requests.ANSWER, [None, str(error), transaction])
            return
        if reserved is None:
            if (now := current_writer(self._using).name) != self._writer:
                cursor.execute(requests.ANSWER, [None, f"The job's process writes as {now} now.", transaction])
        else:
            self._reserved[transaction] = reserved
            self._step("reserved")
            runs = {stream: requests.runs(ids) for stream, ids in reserved.ids.items()}
            cursor.execute(requests.ANSWER, [json.dumps(runs), None, transaction])
            self._step("answered")

    def _leave(self, cursor: Any) -> None:
        """Deletes all requests of the job. A task that still waits for IDs then rolls back.

        The control loop later completes the IDs of tasks that have got IDs.
        """
        cursor.execute(requests.CLEAR_ALL, [self._job, self._writer])
        for reserved in self._reserved.values():
            reserved.ask()
