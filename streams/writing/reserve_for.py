"""Reserves IDs for a transaction that another session has open, perhaps in another process on another host.

A ``Reservation`` takes IDs inside the transaction that writes the rows. Here the writer's process takes them, and a
*worker* writes the rows: a process that is no writer. Both sides have steps that the guarantees depend on.

The worker, in a transaction at READ COMMITTED:

1. It takes the writer's append lock (``streams.writing.append_lock``). Then, in another statement, it reads the
   writer's lease and its own transaction number, and sends both to the writer's process.
2. When it has the IDs, it reads the lease again, in another statement. If the lease is another one, it rolls back.
3. It writes rows under the IDs, with the writer's name, and commits.

The writer's process calls ``reserve_for``. The IDs are pending until the database says how the worker's transaction
ended. So it does not matter which of the two processes dies, or when:

* The worker dies: its transaction is rolled back, and the IDs are completed without rows.
* The writer dies: another process takes the name or retires the writer. It raises the lease, and then waits until no
  session holds the append lock. If the worker took the lock before that, the other process waits for the worker, which
  may still commit. If the worker took the lock later, it reads the new lease and rolls back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.db import connections

from streams.core import lookup
from streams.writing.process import current_writer
from streams.writing.reservation import LARGEST_COUNT, given_out_before
from streams.writing.transaction import OpenTransaction

if TYPE_CHECKING:
    from streams.core.bound import BoundStream
    from streams.core.tracker import PositionTracker
    from streams.writing.writer import WriterProcess

__all__ = ["ReservedFor", "reserve_for"]

_TAKE = "SELECT nextval(%s::text::regclass) FROM generate_series(1, %s)"


class ReservedFor:
    """IDs that are reserved for the transaction of another session.

    ``ids`` maps the name of each stream to its IDs, which are ascending.
    """

    def __init__(self, ids: Mapping[str, list[int]], record: OpenTransaction) -> None:
        self.ids = ids
        self._record = record

    @property
    def ended(self) -> bool:
        """True once the end of the transaction is known. The IDs are complete then."""
        return self._record.ended

    def ask(self) -> None:
        """Makes the control loop ask the database now how the transaction ended.

        Otherwise the control loop asks about once a second.
        """
        if not self._record.ended:
            self._record.writer.ask(self._record)


def reserve_for(transaction: int, name: str, lease: int, counts: Mapping[str, int], using: str) -> ReservedFor | None:
    """Reserves IDs of several streams for the transaction with that number, which another session has open.

    ``counts`` maps the name of each stream to a number of IDs. The process of the other session is called the worker.
    ``name`` is the writer whose append lock the worker holds, and ``lease`` is the lease that the worker read. Returns
    None if this process holds another name or lease: the worker must roll back.

    Raises the errors of ``WriterProcess.enter``, ``SequenceBehind`` and Django's database errors. After an error no ID
    stays pending.
    """
    writer = current_writer(using)
    record = OpenTransaction(writer, transaction)
    ids: dict[str, list[int]] = {}
    try:
        for stream_name, count in counts.items():
            stream = lookup.get(stream_name)
            tenure, tracker = writer.enter(stream)
            if (tenure.name, tenure.lease) != (name, lease):
                record.end(written=False)
                return None
            taken = ids[stream_name] = []
            while len(taken) < count:
                taken += _take(writer, record, stream, tracker, min(count - len(taken), LARGEST_COUNT))
    except BaseException:
        record.end(written=False)  # the worker gets no IDs, so no row has them
        raise
    writer.watch(record)
    return ReservedFor(ids, record)


def _take(
    writer: WriterProcess, record: OpenTransaction, stream: BoundStream, tracker: PositionTracker, count: int
) -> list[int]:
    """Takes IDs from the sequence, and records them as pending on the transaction."""
    # The lease need not be checked in the statement that takes the IDs, as ``Reservation`` does: if it has ended, the
    # worker finds out after it has got them, and writes nothing.
    fetch = tracker.begin_fetch(count, time.monotonic())
    ids: list[int] = []
    try:
        with connections[writer.using].cursor() as cursor:
            cursor.execute(_TAKE, [stream.declaration.sequence, count])
            taken = sorted(number for (number,) in cursor.fetchall())
        if taken[0] <= fetch.above:
            raise given_out_before(stream, taken[0], fetch.above)
        ids = taken
        record.own(stream, tracker, ids)
    finally:
        if tracker.end_fetch(fetch, ids):
            writer.announce_soon()
    return ids
