"""The process as a writer: its name, its lock, and the trackers of the streams that it writes.

A ``WriterProcess`` holds one *control connection*: the session lock on its name, LISTEN, announcements, heartbeats and
questions about transactions all go over it, from one background thread (``streams.writing.control_loop``). When that connection
is lost the lock is lost, and the process is fenced: it may not append until it holds the name again under a new lease.

Why a lease besides the lock: a process that does not yet know that its lock is gone could still append. Every
reservation therefore checks, in the caller's own transaction and after taking the append lock shared, that its lease is the
current one; and a new holder waits for the append lock, exclusively, before it believes that nothing older is open.

Assumes PostgreSQL, one ``WriterProcess`` per process and database alias, and that forked children start anew.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
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
from streams.core.recovery import StreamFindings, start
from streams.core.tracker import PositionTracker
from streams.db import driver
from streams.db.sequences import move_forward
from streams.errors import (
    SequenceBehind,
    UnknownStream,
    WriterBusy,
    WriterDraining,
    WriterFenced,
    WriterNotAllowed,
    WriterRetired,
)
from streams.reading.pokes import CHANNEL
from streams.reading.rows import stored_positions
from streams.runtime.logs import get_logger
from streams.runtime.masking import masked_command
from streams.runtime.version import program_version
from streams.writing import dead_writers
from streams.writing import lease as leases
from streams.writing.in_doubt import InDoubt
from streams.writing.new_life import begin_anew
from streams.writing.transaction import OpenTransaction

__all__ = ["Condition", "Tenure", "WriterControl", "WriterProcess", "when_moved"]

log = get_logger(__name__)


#: A lost announcement is repaired by the next one, so none of them waits for the disk; unless the facts do not wait either: a
#: crash would have the sequence give out again what followers were told of.
_ANNOUNCEMENTS_WAIT_LESS = """
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE 'off' END, false)
"""


#: Called with the database alias when facts of this process are complete, in the thread that learned it; must be quick.
when_moved: set[Callable[[str], None]] = set()


class Condition(StrEnum):
    """Where this process is as a writer."""

    NEW = "new"  # no name held yet
    HOLDING = "holding"  # lock held, may append
    DRAINING = "draining"  # lock held, what is reserved completes, nothing new is reserved
    FENCED = "fenced"  # lock lost, may not append until it is held again
    RETIRED = "retired"  # left when somebody asked it to; this process does not come back
    CLOSED = "closed"  # given up for good


@dataclass(slots=True)
class Tenure:
    """One stretch of holding a name: the lease and the trackers that were started under it.

    They go together: an ID taken under one lease must never be tracked by the trackers of another.
    ``entering`` are streams whose entry was committed and whose poke did not come back yet: pokes before that one tell of times
    that the entry covers, and perhaps of the stream's last life.
    """

    name: str
    lease: int
    append_key: int = 0
    """Locked, shared, by each transaction that appends under the lease."""
    trackers: dict[str, PositionTracker] = field(default_factory=dict)
    entering: set[str] = field(default_factory=set)


class WriterControl(Protocol):
    """The thread that works on the control connection, as far as the writer needs it."""

    def start(self) -> None:
        """Start the thread if it does not run."""

    def wake(self) -> None:
        """Look at everything now."""

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until nothing is pending and everything is announced."""

    def stop(self) -> None:
        """End the thread and wait for it."""


class WriterProcess:
    """This process as a writer on one database."""

    def __init__(self, using: str, pattern: str, control_loop: Callable[[WriterProcess], WriterControl]) -> None:
        self.using = using
        self.pattern = pattern
        self.tenure = Tenure("", 0)
        self.condition = Condition.NEW
        self.control: Any = None
        self.drain_asked_by = ""
        self.shown_pending: dict[str, tuple[Any, ...]] = {}
        self._left: set[str] = set()
        self._lock = threading.RLock()
        self._background = control_loop(self)
        self.in_doubt = InDoubt(self._background.wake)

    @property
    def name(self) -> str:
        """The name that is held; empty before the first reservation."""
        return self.tenure.name

    @property
    def lease(self) -> int:
        """The number of the present lease."""
        return self.tenure.lease

    @property
    def trackers(self) -> dict[str, PositionTracker]:
        """The streams entered under the present lease."""
        return self.tenure.trackers

    # --- holding the name -----------------------------------------------------------------------------------------

    @property
    def has_lock(self) -> bool:
        """Whether the name is held, be it to append or to leave."""
        return self.condition in (Condition.HOLDING, Condition.DRAINING)

    def hold(self) -> None:
        """Take the name if it is not held: lock, lease, and proof that nothing of an earlier holder is open.

        Raises ``WriterNameTaken`` or ``WriterBusy``, with the holder; ``WriterFenced`` while a lost lock is not back;
        ``WriterDraining`` and ``WriterRetired`` on the way out; Django's ``OperationalError`` when the database is away.
        """
        if self.condition is Condition.HOLDING:
            return
        self._refuse()
        with self._lock:
            if self.condition is Condition.HOLDING:
                return
            self._refuse()
            with connections[self.using].wrap_database_errors:  # the caller's own statements raise Django's errors, too
                taken = self._take(self.pattern)
            self._install(*taken)
            try:
                self._background.start()
                self._resume()
            except BaseException:  # an interrupt: the background takes the name again, and enters what was left out
                self.fenced("not all its streams were entered")
                self._background.start()
                raise

    def _refuse(self) -> None:
        """No reservation for a process that lost its name or leaves."""
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
        """Without waiting for the lock: the caller's own transaction may be what taking the name again waits for."""
        if self.condition is Condition.FENCED:
            raise self.fenced_error()

    def hold_again(self) -> None:
        """After the control connection was lost: take the same name under a new lease, and forget what was known."""
        if self.condition is not Condition.FENCED:
            return
        taken = self._take(self.name)
        with self._lock:
            if self.condition is not Condition.FENCED:  # closed meanwhile
                _close_quietly(taken[0])
                return
            self.shown_pending = {}
            # A fenced: its streams stand active. B finds its locks free, proves it dead and retires it on them. A holds the name
            # again: without what it wrote before, it would live and stand in no stream until its next append.
            self._left.update(self.trackers)
            self._install(*taken)
            self._resume(self._left)
            self._left.clear()
            log.info("writer.holds_again", writer=self.name, lease=self.lease, streams=list(self.trackers))
            if self.drain_asked_by:
                self.begin_drain(self.drain_asked_by)

    def _take(self, pattern: str) -> tuple[Any, leases.Held]:
        control = driver.direct_connection(self.using, application_name=f"replsite writer {pattern}")
        try:
            with control.cursor() as cursor:
                epochs.current_epoch(cursor)  # a restored database is noticed before anything is written to it
                held = leases.take(cursor, pattern, _identity(), stream_settings().lease_timeout_seconds)
                cursor.execute(f"LISTEN {driver.channel(cursor, CHANNEL)}")
                cursor.execute(_ANNOUNCEMENTS_WAIT_LESS)
                driver.notify_queue_usage(cursor)  # a queue that was full would refuse to take what enters its streams
        except BaseException:
            control.close()
            raise
        return control, held

    def _install(self, control: Any, held: leases.Held) -> None:
        self.control, self.tenure = control, Tenure(held.name, held.lease, held.append_key)
        self.in_doubt.locks_kept = 0
        self.condition = Condition.HOLDING
        log.info("writer.holds_name", writer=self.name, lease=self.lease)

    def _resume(self, left: Collection[str] = ()) -> None:
        """Enter the streams that an earlier life of this name has not left: nobody else moves their positions on.

        ``left`` are those that this process wrote before it lost the name, which others may have retired it on.
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
            except SequenceBehind as error:  # concerns those who append to that stream, and they are told
                log.error("writer.cannot_resume", writer=self.name, stream=name, error=str(error))

    def fenced(self, reason: str, lease: int | None = None) -> None:
        """The control connection is gone, or another process holds the name: no more appends under this lease.

        With ``lease`` given, only if that is still the present one.
        """
        with self._lock:
            if not self.has_lock or lease not in (None, self.lease):
                return
            self.condition = Condition.FENCED
            _close_quietly(self.control)
            log.warning("writer.fenced", writer=self.name, lease=self.lease, reason=reason)

    def fenced_error(self) -> WriterFenced:
        """The error that an append gets meanwhile."""
        return WriterFenced(
            f"This process lost its lock on the writer name {self.name!r} (lease {self.lease}), so it may not append: another "
            f"process may hold the name. It tries to take the name again by itself; repeat the transaction."
        )

    # --- streams --------------------------------------------------------------------------------------------------

    def tracker(self, stream: BoundStream) -> PositionTracker:
        """The tracker of a stream that this process writes; enters the stream on first use."""
        return self.enter(stream)[1]

    def enter(self, stream: BoundStream) -> tuple[Tenure, PositionTracker]:
        """The present tenure and its tracker of a stream; enters the stream on first use."""
        self.hold()
        tenure = self.tenure
        tracker = tenure.trackers.get(stream.name)
        if tracker is None:
            with self._lock:
                tenure = self.tenure
                tracker = tenure.trackers.get(stream.name) or self._enter(stream)
        return tenure, tracker

    def _enter(self, stream: BoundStream) -> PositionTracker:
        """Start on a stream, as ``streams.core.recovery`` tells. The writer's row is committed before its first reservation."""
        self._check_allowed(stream)
        tracker = self._start(stream)
        for other in stream.sharing:  # an ID taken here moves the other's position, too, so that it does not lag
            if other.name not in self.trackers and self._is_allowed(other):
                self._start(other)
        self._background.wake()
        return tracker

    def _start(self, stream: BoundStream) -> PositionTracker:
        with self.control_cursor() as cursor:
            if stream.declaration.in_memory:
                self._resolve_the_dead(cursor, stream)
            with driver.in_transaction(cursor):
                tracker = self._start_on(cursor, stream)
        self.tenure.entering.add(stream.name)
        self.trackers[stream.name] = tracker
        return tracker

    def _resolve_the_dead(self, cursor: Any, stream: BoundStream) -> None:
        """A stream in memory begins anew unless somebody else lives, so see who does."""
        stored = stored_positions(cursor, [stream.name]).get(stream.name, {})
        for writer in sorted(w for w, at in stored.items() if at.state != RETIRED and w != self.name):
            dead_writers.resolve_writer(cursor, writer, self.name)

    def _start_on(self, cursor: Any, stream: BoundStream) -> PositionTracker:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [driver.start_key(cursor, stream.name)])
        stored = stored_positions(cursor, [stream.name]).get(stream.name, {})
        if stream.declaration.in_memory and all(w == self.name or at.state == RETIRED for w, at in stored.items()):
            begin_anew(cursor, stream)
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
        outcome = start(findings, self.name)
        if outcome.set_sequence_to is not None:
            log.warning(
                "stream.sequence_moved", stream=stream.name, was=findings.sequence_value, to=outcome.set_sequence_to
            )
            move_forward(cursor, stream.declaration.sequence, outcome.set_sequence_to)
        tracker = outcome.tracker(stream.ids_from(cursor, outcome.linear), findings)
        held = [row for row in leases.hold_positions(cursor, stream.name) if row[0] != self.name]
        tracker.learn(
            {writer: position for writer, state, position in held if state != RETIRED},
            {writer: position for writer, state, position in held if state == RETIRED},
        )
        leases.store_entry(cursor, stream, self.name, tracker.announceable)
        return tracker

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
        """A cursor on the control connection, for one thread at a time; its loss fences the process."""
        self._refuse_fenced()
        with self._lock:
            if not self.has_lock:
                raise self.fenced_error()
            try:
                with self.control.cursor() as cursor:
                    yield cursor
            except driver.connection_gone as error:
                self.fenced(str(error).strip() or type(error).__name__)
                raise self.fenced_error() from error

    # --- background -----------------------------------------------------------------------------------------------

    def announce_soon(self) -> None:
        """A position rose: let the background thread store and announce it, together with others that rose meanwhile."""
        self._background.wake()
        for call in list(when_moved):  # another thread may add the first waiter's
            call(self.using)

    def watch(self, transaction: OpenTransaction) -> None:
        """Have an open transaction looked after until its end is known."""
        self.in_doubt.watch(transaction)

    def ask(self, transaction: OpenTransaction) -> None:
        """The transaction seems to have ended without its hook: ask the database now. Safe to call from anywhere."""
        self.in_doubt.ask(transaction)

    # --- the end --------------------------------------------------------------------------------------------------

    def begin_drain(self, asked_by: str = "") -> None:
        """``active -> draining``: from now on nothing new is reserved, and what is open completes.

        With ``asked_by`` the background thread retires the writer once nothing is pending, and this process does not
        come back. Does nothing when it is draining already, or holds no name.
        """
        with self._lock:
            if self.condition is not Condition.HOLDING:
                return
            self.condition, self.drain_asked_by = Condition.DRAINING, asked_by
            with self.control_cursor() as cursor:
                leases.mark_draining(cursor, self.name, asked_by)
            log.info("writer.drains", writer=self.name, streams=list(self.trackers), asked_by=asked_by or "its process")

    def finish_drain(self, timeout_seconds: float) -> bool:
        """``draining -> retired`` as somebody asked: called by the background thread when nothing is pending."""
        with self._lock:
            if self.condition is not Condition.DRAINING or not self._leave(timeout_seconds):
                return False
            _close_quietly(self.control)
            self.condition = Condition.RETIRED
            return True

    def retire(self, timeout_seconds: float = 5.0) -> bool:
        """Leave all streams: reserve nothing more, wait for what is pending, announce, and leave the linear position.

        Appends of other threads get ``WriterDraining`` meanwhile. Returns False when something
        is still pending after the time-out; the name is then let go as it is, and whoever finds the writer gone resolves
        it by evidence.
        """
        with suppress(WriterFenced):  # then there is nothing to leave in order
            self.begin_drain()
        clean = self._background.drain(timeout_seconds)
        self._background.stop()  # before the lease ends, or the next heartbeat would take it for a loss
        with self._lock:
            if self.condition is Condition.DRAINING and clean:
                clean = self._leave(timeout_seconds)
        self.close()
        return clean

    def _leave(self, timeout_seconds: float) -> bool:
        """End the lease, prove that nothing is open under it any more, then retire on all streams."""
        trace = dead_writers.Trace.drained(self.drain_asked_by) if self.drain_asked_by else None
        try:
            with self.control_cursor() as cursor:
                leases.end(cursor, self.name, self.lease)
                leases.wait_for_open_transactions(cursor, self.name, timeout_seconds)
                dead_writers.retire_streams(cursor, self.name, trace=trace)
        except (WriterBusy, WriterFenced) as error:
            log.warning("writer.not_retired", writer=self.name, reason=str(error))
            return False
        log.info("writer.retired", writer=self.name, asked_by=self.drain_asked_by or "its process")
        return True

    def close(self) -> None:
        """Let the name go without a word, as a process that dies would."""
        self._background.stop()
        with self._lock:
            if self.control is not None:
                _close_quietly(self.control)
            self.condition = Condition.CLOSED


def _close_quietly(connection: Any) -> None:
    try:
        connection.close()
    except driver.DatabaseError as error:
        log.debug("writer.close_failed", error=str(error))


def _identity() -> leases.Identity:
    return leases.Identity(socket.gethostname(), os.getpid(), masked_command(sys.argv)[:200], program_version())
