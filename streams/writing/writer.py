"""The process as a writer: its name, its lock, and the trackers of the streams that it writes.

A ``WriterProcess`` holds one *control connection*, which one background thread uses (``streams.writing.control_loop``).
The session lock on the name, announcements, heartbeats and questions about transactions all use this connection. When
the control connection is lost, the lock is lost and the process is fenced: it may not append until it holds the name
again under a new lease. Notifications arrive on another connection, which belongs to the process's watcher.

The lock alone is not enough: a process that does not know yet that its lock is gone could still append. Every
reservation therefore takes the append lock in shared mode, in the caller's own transaction, and then checks that its
lease is the current one. A new holder of the name raises the lease and waits until no session holds the append lock. Then no
transaction of an older lease is open (``streams.writing.append_lock``).

Assumes PostgreSQL, one ``WriterProcess`` per process and database alias, and that a forked child makes a
``WriterProcess`` of its own.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from django.db import connections

from streams import epochs
from streams.conf import stream_settings
from streams.core import lookup
from streams.core.bound import BoundStream
from streams.core.names import matches_pattern
from streams.core.positions import RETIRED
from streams.core.recovery import StreamFindings, recover
from streams.core.sequences import read_sequences
from streams.core.tracker import PositionTracker
from streams.db import driver
from streams.db.sequences import move_forward
from streams.errors import (
    SequenceBehind,
    SequenceUnfit,
    StreamError,
    UnknownStream,
    WriterBusy,
    WriterDraining,
    WriterFenced,
    WriterNotAllowed,
    WriterRetired,
)
from streams.reading.rows import stored_positions
from streams.reading.watcher import watcher_of
from streams.runtime.logs import get_logger
from streams.runtime.masking import masked_command
from streams.runtime.version import program_version
from streams.writing import dead_writers
from streams.writing import lease as leases
from streams.writing.in_doubt import InDoubt
from streams.writing.key_locks import create_rows
from streams.writing.new_life import begin_generation
from streams.writing.transaction import OpenTransaction

__all__ = ["Condition", "Tenure", "WriterControl", "WriterProcess"]

log = get_logger(__name__)
#: Pause between two attempts to enter a stream while another session holds its start lock.
_ENTER_GAP_SECONDS = 0.01

#: Announcements do not wait for the disk, because the next announcement repairs a lost one. But if the server does not make
#: commits of facts wait for the disk, announcements do wait. Otherwise a crash could make the sequence give out IDs again that
#: were announced already.
_ANNOUNCEMENTS_WAIT_LESS = """
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE 'off' END, false)
"""


class Condition(StrEnum):
    """The states of this process as a writer."""

    NEW = "new"  # no name held yet
    HOLDING = "holding"  # lock held, may append
    DRAINING = "draining"  # lock held, open transactions may end, nothing new is reserved
    FENCED = "fenced"  # lock lost, may not append until the name is held again
    RETIRED = "retired"  # has left because an operator asked; this process never writes again
    CLOSED = "closed"  # name released for good; the process makes a new writer if it appends again


@dataclass(slots=True)
class Tenure:
    """One period of holding a name: the lease, and the trackers that were started under it.

    Lease and trackers belong together: a tracker must never track an ID that was taken under another lease.
    ``entering`` are the streams that this process has entered, but whose entry notification has not come back yet.
    Notifications that arrive before the entry notification are ignored. Such notifications contain nothing new, because
    the process read the table when it entered the stream. They may even be of an earlier generation.
    """

    name: str
    lease: int
    append_key: int = 0
    """Key of the append lock, which each transaction that appends under the lease holds, shared."""
    trackers: dict[str, PositionTracker] = field(default_factory=dict)
    entering: set[str] = field(default_factory=set)


class WriterControl(Protocol):
    """The methods of the control loop that the writer calls."""

    def listen(self) -> None:
        """Begins to receive notifications. Discards notifications that were received before. Raises the driver's errors."""

    def start(self) -> None:
        """Starts the thread if it does not run."""

    def wake(self) -> None:
        """Makes the thread look for work now."""

    def drain(self, timeout_seconds: float) -> bool:
        """Waits until no ID is pending and every position is announced. Returns false if the time is up first."""

    def stop(self) -> None:
        """Ends the thread and waits for it."""


class WriterProcess:
    """The writer of this process on one database."""

    def __init__(self, using: str, pattern: str, control_loop: Callable[[WriterProcess], WriterControl]) -> None:
        self.using = using
        self.pattern = pattern
        self.tenure = Tenure("", 0)
        self.condition = Condition.NEW
        self.control: Any = None
        self.drain_asked_by = ""
        self.trouble = ""
        """Why the process is fenced, or why its last try to take the name again failed. Empty while it holds the name."""
        self.shown_pending: dict[str, tuple[Any, ...]] = {}
        self._left: set[str] = set()
        self._lock = threading.RLock()
        self._background = control_loop(self)
        self.in_doubt = InDoubt(self._background.wake)

    @property
    def name(self) -> str:
        """The name that this process holds or held last. Empty before the first reservation."""
        return self.tenure.name

    @property
    def lease(self) -> int:
        """The present lease, which is a counter. 0 before the first reservation."""
        return self.tenure.lease

    @property
    def trackers(self) -> dict[str, PositionTracker]:
        """The trackers of the streams that were entered under the present lease, by the stream's name."""
        return self.tenure.trackers

    # --- holding the name -----------------------------------------------------------------------------------------

    @property
    def has_lock(self) -> bool:
        """Returns true while this process holds the name, whether it appends or drains."""
        return self.condition in (Condition.HOLDING, Condition.DRAINING)

    def hold(self) -> None:
        """Takes the name, that is, the writer lock and a new lease. Does nothing if this process holds the name already.

        Waits until no transaction of an earlier holder is open. Raises ``WriterNameTaken`` or ``WriterBusy``, which say
        who holds the name. Raises ``WriterFenced`` after the lock was lost, until the control loop has taken the name
        again. Raises ``WriterDraining`` or ``WriterRetired`` once the process leaves, and Django's ``OperationalError``
        if the database is away.
        """
        if self.condition is Condition.HOLDING:
            return
        self._refuse()
        with self._lock:
            # Checked again under the lock: meanwhile another thread may have taken the name, or begun to leave.
            if self.condition is Condition.HOLDING:  # type: ignore[comparison-overlap]  # for mypy nothing has changed
                return
            self._refuse()
            with connections[self.using].wrap_database_errors:  # the caller's own statements raise Django's errors, too
                taken = self._take(self.pattern)
            self._install(*taken)
            try:
                self._background.start()
                self._resume()
            except BaseException:  # such as an interrupt: the control loop takes the name again and enters all streams
                self.fenced("not all its streams were entered")
                self._background.start()
                raise

    def _refuse(self) -> None:
        """Raises ``WriterFenced``, ``WriterDraining`` or ``WriterRetired`` if this process has lost its name or is leaving."""
        self._refuse_fenced()
        who = f", as {self.drain_asked_by} asked" if self.drain_asked_by else ""
        if self.condition is Condition.DRAINING:
            raise WriterDraining(
                f"Writer {self.name!r} is leaving its streams{who}: what it has reserved completes, but it reserves nothing "
                f"new. Repeat the transaction in another process."
            )
        if self.condition is Condition.RETIRED:
            raise WriterRetired(
                f"Writer {self.name!r} has left its streams{who}, so this process may not append any more. Restart it: a new "
                f"process takes the name again."
            )

    def _refuse_fenced(self) -> None:
        """Raises ``WriterFenced`` if the process is fenced."""
        if self.condition is Condition.FENCED:
            raise self.fenced_error()

    def hold_again(self) -> None:
        """Takes the same name again after the process was fenced, under a new lease, and enters its streams again.

        Does nothing unless the process is fenced. Raises the same errors as ``hold``.
        """
        if self.condition is not Condition.FENCED:
            return
        try:
            taken = self._take(self.name)
        except (StreamError, *driver.connection_gone) as error:
            self.trouble = _first_line(str(error)) or type(error).__name__
            raise
        with self._lock:
            if self.condition is not Condition.FENCED:  # closed meanwhile
                _close_quietly(taken[0])
                return
            self.shown_pending = {}
            # A is fenced. B finds A's locks free and retires A on its streams as dead. A takes the name again. If A did not enter
            # its former streams again, it would live, but be a writer of no stream until its next append.
            self._left.update(self.trackers)
            self._install(*taken)
            try:
                self._resume(self._left)
            except BaseException:
                # The control loop tries again, because no other process would move the positions of the missing streams on.
                self.fenced("not all its streams were entered")
                raise
            self._left.clear()
            log.info("writer.holds_again", writer=self.name, lease=self.lease, streams=list(self.trackers))
            if self.drain_asked_by:
                self.begin_drain(self.drain_asked_by)

    def _take(self, pattern: str) -> tuple[Any, leases.Held]:
        control = driver.direct_connection(self.using, application_name=f"replsite writer {pattern}")
        try:
            with control.cursor() as cursor:
                epochs.current_epoch(cursor)  # notices a restored database before anything is written to it
                held = leases.take(cursor, pattern, _identity(), stream_settings().lease_timeout_seconds)
                cursor.execute(_ANNOUNCEMENTS_WAIT_LESS)
                driver.notify_queue_usage(cursor)  # cleans a full queue, which would refuse to enter streams
            self._background.listen()  # before streams are entered: what is sent after the table was read must arrive
        except BaseException:
            control.close()
            raise
        return control, held

    def _install(self, control: Any, held: leases.Held) -> None:
        self.control, self.tenure = control, Tenure(held.name, held.lease, held.append_key)
        self.in_doubt.locks_kept = 0
        self.condition, self.trouble = Condition.HOLDING, ""
        log.info("writer.holds_name", writer=self.name, lease=self.lease)

    def _resume(self, left: Collection[str] = ()) -> None:
        """Enters all streams on which this writer is not retired, and the streams in ``left``.

        No other process raises the positions of this writer on these streams, so they would hold back the linear
        position. ``left`` are the streams that this process wrote before it lost the name. Other processes may have
        retired this writer on these streams since. If the process may no longer write a stream, or has no such stream,
        this writer is retired there.
        """
        with self.control_cursor() as cursor:
            cursor.execute(leases.ACTIVE_STREAMS, [self.name])
            names = [row[0] for row in cursor.fetchall()]
        for name in sorted({*names, *left}):
            try:
                self.enter(lookup.get(name))
            except (UnknownStream, WriterNotAllowed) as error:
                log.warning("writer.leaves_stream", writer=self.name, stream=name, reason=str(error))
                with self.control_cursor() as cursor:
                    dead_writers.retire_streams(cursor, self.name, [name])
            except (SequenceBehind, SequenceUnfit) as error:
                # Appends to this stream will raise the same error. Other streams go on.
                log.error("writer.cannot_resume", writer=self.name, stream=name, error=str(error))

    def fenced(self, reason: str, lease: int | None = None) -> None:
        """Fences the process: forbids appends, because the control connection is lost or another process holds the name.

        If ``lease`` is given, does so only if it is still the present lease.
        """
        with self._lock:
            if not self.has_lock or lease not in (None, self.lease):
                return
            self.condition, self.trouble = Condition.FENCED, _first_line(reason)
            _close_quietly(self.control)
            log.warning("writer.fenced", writer=self.name, lease=self.lease, reason=reason)

    def fenced_error(self) -> WriterFenced:
        """Returns the error that an append gets while the process is fenced."""
        cause = f" Cause: {self.trouble.rstrip('.')}." if self.trouble else ""
        return WriterFenced(
            f"This process lost its lock on the writer name {self.name!r} (lease {self.lease}), so it may not append: another "
            f"process may hold the name.{cause} It tries to take the name again by itself; repeat the transaction."
        )

    # --- streams --------------------------------------------------------------------------------------------------

    def tracker(self, stream: BoundStream) -> PositionTracker:
        """Returns the tracker of a stream that this process writes. Enters the stream on first use."""
        return self.enter(stream)[1]

    def enter(self, stream: BoundStream) -> tuple[Tenure, PositionTracker]:
        """Returns the present tenure, and the tracker of the stream under this tenure. Enters the stream on first use.

        Raises the same errors as ``hold``, and also ``WriterNotAllowed``, ``SequenceBehind`` and ``SequenceUnfit``. Raises
        ``WriterBusy`` if another session holds the lock that is needed to enter the stream.
        """
        self.hold()
        tenure = self.tenure
        tracker = tenure.trackers.get(stream.name)
        if tracker is None:
            self._check_allowed(stream)
            tenure, tracker = self._enter(stream)
            for other in stream.sharing:  # an ID taken for one of these streams moves the positions of all
                if self._is_allowed(other):
                    self._enter(other)
            self._background.wake()
        return tenure, tracker

    def _enter(self, stream: BoundStream) -> tuple[Tenure, PositionTracker]:
        """Enters a stream as ``streams.core.recovery`` describes. Returns the tenure and the tracker.

        Commits the writer's row before the writer reserves an ID on the stream. Raises ``WriterBusy`` if the start
        lock is not free in time.
        """
        seconds = stream_settings().lease_timeout_seconds
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                tenure = self.tenure
                tracker = tenure.trackers.get(stream.name) or self._start(stream)
            if tracker is not None:
                return tenure, tracker
            if time.monotonic() > deadline:
                raise self._kept_out(stream, seconds)
            # While it waits, this thread holds neither our lock (except in ``_resume``) nor the control connection. Otherwise, if
            # some session B kept the start lock of one stream, A would wait and announce nothing on all its other streams.
            time.sleep(_ENTER_GAP_SECONDS)
            self.hold()  # meanwhile the name may have been lost or given up

    def _kept_out(self, stream: BoundStream, seconds: float) -> WriterBusy:
        with self.control_cursor() as cursor:
            holder = leases.describe_lock_holder(cursor, driver.start_key(cursor, stream.name))
        return WriterBusy(
            f"Writer {self.name!r} cannot enter stream {stream.name!r}: after {seconds:g} s another session still holds the "
            f"lock of those that enter it{holder}. Repeat the transaction, or end that session: pg_terminate_backend."
        )

    def _start(self, stream: BoundStream) -> PositionTracker | None:
        """Starts a tracker and commits the writer's row. Returns None while another session holds the start lock."""
        with self.control_cursor() as cursor:
            if stream.declaration.in_memory:
                self._resolve_the_dead(cursor, stream)
            create_rows(cursor, stream)
            # The writer's row is committed before the first ID is taken. So readers know this writer before any of its facts, and
            # their linear position cannot pass a fact of it that is still open.
            with driver.in_transaction(cursor):
                tracker = self._start_on(cursor, stream)
        if tracker is not None:
            self.tenure.entering.add(stream.name)
            self.trackers[stream.name] = tracker
        return tracker

    def _resolve_the_dead(self, cursor: Any, stream: BoundStream) -> None:
        """Retires the dead writers of a stream in memory, other than this writer.

        If no other writer remains after that, the caller restarts the stream at 0.
        """
        stored = stored_positions(cursor, [stream.name]).get(stream.name, {})
        for writer in sorted(w for w, at in stored.items() if at.state != RETIRED and w != self.name):
            dead_writers.resolve_writer(cursor, writer, self.name)

    def _start_on(self, cursor: Any, stream: BoundStream) -> PositionTracker | None:
        # Only one writer at a time may enter a stream. Otherwise A and B, the first writers of a stream in memory, would each
        # find no living writer, and B would delete the facts that A has appended since.
        if not leases.lock_start(cursor, stream.name):
            return None
        self._check_sequence(cursor, stream)
        stored = stored_positions(cursor, [stream.name]).get(stream.name, {})
        if stream.declaration.in_memory and all(w == self.name or at.state == RETIRED for w, at in stored.items()):
            begin_generation(cursor, stream)
            stored = stored_positions(cursor, [stream.name]).get(stream.name, {})
            log.info("stream.begun_anew", stream=stream.name, writer=self.name)
        findings = StreamFindings(
            stream=stream.name,
            table_maximum=stream.table_maximum(cursor),
            sequence_value=stream.sequence_value(cursor),
            stored={writer: at.position for writer, at in stored.items()},
            writers=sorted({w for w, at in stored.items() if at.state != RETIRED} | {self.name}),
            empty_position=stream.declaration.empty_position,
        )
        outcome = recover(findings, self.name)
        if outcome.set_sequence_to is not None:
            log.warning(
                "stream.sequence_moved", stream=stream.name, was=findings.sequence_value, to=outcome.set_sequence_to
            )
            move_forward(cursor, stream.declaration.sequence, outcome.set_sequence_to)
        tracker = outcome.tracker(stream.ids_from(cursor, outcome.linear), findings)
        # The positions are read again and locked until the commit, because they may have risen since ``stored`` was read. The row
        # that ``store_entry`` adds then lies at or above all of them, so the minimum over the writers never goes down.
        held = [row for row in leases.hold_positions(cursor, stream.name) if row[0] != self.name]
        tracker.learn(
            {writer: position for writer, state, position in held if state != RETIRED},
            {writer: position for writer, state, position in held if state == RETIRED},
        )
        leases.store_entry(cursor, stream, self.name, tracker.announceable)
        return tracker

    @staticmethod
    def _check_sequence(cursor: Any, stream: BoundStream) -> None:
        """Raises ``SequenceUnfit`` if facts would be lost with the stream's sequence as it is."""
        found = read_sequences(cursor, [one.declaration for one in (stream, *stream.sharing)])[stream.name]
        # Of a missing sequence or table, the database's own error says more: which migration makes it.
        if found.is_there and any(fault.loses_facts for fault in found.faults):
            raise SequenceUnfit(
                f"Stream {stream.name}: nothing was appended, because facts would be lost. {found.sentence}"
            )

    def _check_allowed(self, stream: BoundStream) -> None:
        if not self._is_allowed(stream):
            allowed = stream_settings().writers[stream.name]
            raise WriterNotAllowed(
                f"Instance {self.name!r} may not write stream {stream.name!r}: REPLSITE_WRITERS lets only "
                f"{', '.join(allowed)} write it. Add the name there, or append in one of those processes."
            )

    def _is_allowed(self, stream: BoundStream) -> bool:
        allowed = stream_settings().writers.get(stream.name)
        return allowed is None or any(matches_pattern(self.name, pattern) for pattern in allowed)

    @contextmanager
    def control_cursor(self) -> Iterator[Any]:
        """Yields a cursor on the control connection, to one thread at a time. A lost connection fences the process.

        Raises ``WriterFenced`` if the name is not held, or if the connection is lost inside the block.
        """
        self._refuse_fenced()
        with self._lock:
            if not self.has_lock:
                raise self.fenced_error()
            try:
                with self.control.cursor() as cursor:
                    yield cursor
            except driver.connection_gone as error:
                if driver.still_works(error):  # the session goes on, and holds the name
                    raise
                self.fenced(str(error).strip() or type(error).__name__)
                raise self.fenced_error() from error

    # --- background -----------------------------------------------------------------------------------------------

    def announce_soon(self) -> None:
        """Makes the control loop store and announce the positions that have risen."""
        self._background.wake()
        if (watcher := watcher_of(self.using)) is not None:
            watcher.own_moved()

    def watch(self, transaction: OpenTransaction) -> None:
        """Makes the control loop watch an open transaction until its end is known."""
        self.in_doubt.watch(transaction)

    def ask(self, transaction: OpenTransaction) -> None:
        """Makes the control loop ask the database how a transaction ended, because its commit hook was not called.

        Any thread may call this method, and so may the garbage collector.
        """
        self.in_doubt.ask(transaction)

    # --- the end --------------------------------------------------------------------------------------------------

    def begin_drain(self, asked_by: str = "") -> None:
        """Makes the writer drain: from now on nothing new is reserved, while open transactions end.

        If ``asked_by`` names an operator who asked for it, the control loop retires the writer once nothing is pending,
        and this process never writes again. Does nothing unless the process holds its name and is not draining yet.
        """
        with self._lock:
            if self.condition is not Condition.HOLDING:
                return
            self.condition, self.drain_asked_by = Condition.DRAINING, asked_by
            with self.control_cursor() as cursor:
                leases.mark_draining(cursor, self.name, asked_by)
            log.info("writer.drains", writer=self.name, streams=list(self.trackers), asked_by=asked_by or "its process")

    def finish_drain(self, timeout_seconds: float) -> bool:
        """Retires a writer that an operator asked to leave. The control loop calls this once nothing is pending.

        Returns false if the process is not draining, or if the writer could not be retired.
        """
        with self._lock:
            if self.condition is not Condition.DRAINING or not self._leave(timeout_seconds):
                return False
            _close_quietly(self.control)
            self.condition = Condition.RETIRED
            return True

    def retire(self, timeout_seconds: float = 5.0) -> bool:
        """Leaves all streams: drains, announces the last positions, retires the writer, and releases the name.

        Meanwhile appends of other threads raise ``WriterDraining``. Returns false if something is still pending after the
        timeout. Then the name is released all the same, and other processes find the writer dead and retire it.
        """
        with suppress(WriterFenced):  # a fenced writer has nothing to leave in order
            self.begin_drain()
        clean = self._background.drain(timeout_seconds)
        self._background.stop()  # before the lease ends: the next heartbeat would find it ended and fence the process
        with self._lock:
            if self.condition is Condition.DRAINING and clean:
                clean = self._leave(timeout_seconds)
        self.close()
        return clean

    def _leave(self, timeout_seconds: float) -> bool:
        """Ends the lease, waits until no transaction under this lease is open, then retires the writer on all streams.

        Returns false if such a transaction is still open after the timeout, or if the writer lock was lost.
        """
        trace = dead_writers.Trace.drained(self.drain_asked_by) if self.drain_asked_by else None
        try:
            with self.control_cursor() as cursor:
                # The lease ends first. In the other order, A finds no open transaction. Then a thread that was allowed to append
                # before the drain began reserves 8 under the lease. A retires the writer, and readers pass 8 while it is open.
                leases.end(cursor, self.name, self.lease)
                leases.wait_for_open_transactions(cursor, self.name, timeout_seconds)
                dead_writers.retire_streams(cursor, self.name, trace=trace)
        except (WriterBusy, WriterFenced) as error:
            log.warning("writer.not_retired", writer=self.name, reason=str(error))
            return False
        log.info("writer.retired", writer=self.name, asked_by=self.drain_asked_by or "its process")
        return True

    def close(self) -> None:
        """Releases the name, but does not retire the writer, as if the process had died."""
        self._background.stop()
        with self._lock:
            if self.control is not None:
                _close_quietly(self.control)
            self.condition = Condition.CLOSED


def _first_line(text: str) -> str:
    """Returns the first line of an error's text, which says what happened.

    The lines after it may contain the query, or the end of a server's log.
    """
    return text.strip().partition("\n")[0]


def _close_quietly(connection: Any) -> None:
    try:
        connection.close()
    except driver.DatabaseError as error:
        log.debug("writer.close_failed", error=str(error))


def _identity() -> leases.Identity:
    return leases.Identity(socket.gethostname(), os.getpid(), masked_command(sys.argv)[:200], program_version())
