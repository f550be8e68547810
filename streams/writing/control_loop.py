"""The control loop: one thread on the control connection of a writing process.

The loop receives the notifications of other writers, announces positions, sends heartbeats, and asks the database how
transactions ended whose end is unknown. Other threads only leave work for the loop and wake it. Announcements are
coalesced: all positions that rise while one announcement is under way go out together in the next one.

Assumes that the process holds its writer lock whenever the control connection is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from streams.conf import stream_settings
from streams.core import lookup
from streams.core.positions import ACTIVE, active_and_retired
from streams.db import driver
from streams.errors import StreamError
from streams.reading import watcher
from streams.reading.position_notifications import CHANNEL, NotificationFilter, PositionNotification
from streams.reading.possible_positions import possible_positions
from streams.reading.trust import OneTimeWords
from streams.reading.watcher import NotifiedPosition
from streams.runtime.logs import Condition, get_logger
from streams.runtime.wake_up import WakeUp
from streams.writing import dead_writers, heartbeat
from streams.writing.in_doubt import MOST_LOCKS_KEPT
from streams.writing.writer import Condition as WriterCondition
from streams.writing.writer import WriterProcess

if TYPE_CHECKING:
    from streams.core.tracker import PositionTracker
    from streams.reading.rows import StoredPosition

__all__ = ["ControlLoop"]

log = get_logger(__name__)
RETRY_SECONDS = 0.2
#: Time limit of one attempt to retire, after an operator asked the writer to leave. The thread tries again.
LEAVE_SECONDS = 1.0
#: Least time between two announcements. The first announcement after a pause goes out at once.
ANNOUNCE_GAP_SECONDS = 0.005

#: Stores positions and sends their notifications in one statement, so that a notification follows only a stored position. A
#: position is stored only under the present lease, and never above what the sequence gave out.
_ANNOUNCE = """
WITH given AS (
    SELECT *, greatest(pg_sequence_last_value(to_regclass(sequence)), 1) AS given_out
    FROM unnest(
        %(streams)s::text[], %(positions)s::bigint[], %(last_writes)s::bigint[], %(sequences)s::text[], %(words)s::text[]
    ) AS given (stream, position, last_write, sequence, words)
), moved AS (
    UPDATE streams_streamposition p SET
        position = given.position,
        last_write_position = CASE WHEN given.last_write = 0 THEN p.last_write_position ELSE given.last_write END,
        last_advance_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM given, streams_instance i
    WHERE p.stream = given.stream AND p.instance_name = %(name)s AND abs(given.position) > abs(p.position)
      AND abs(given.position) <= given.given_out
      AND i.name = %(name)s AND i.lease = %(lease)s
    RETURNING p.stream, p.position, given.words
)
SELECT pg_notify(%(channel)s, stream || ' ' || %(name)s::text || ' ' || abs(position) || ' ' || words),
       CASE WHEN %(lasting)s::boolean THEN set_config('synchronous_commit', 'on', true) END
FROM moved
"""
_QUEUE_FULL = "end the session that LISTENs and keeps a transaction open; the server's log names it"


class ControlLoop:
    """The control loop of one writer: its thread, and the methods by which other threads use it."""

    def __init__(self, writer: WriterProcess) -> None:
        self._writer = writer
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake_up: WakeUp | None = None
        self._judge = NotificationFilter()
        self._words = OneTimeWords()
        self._looked: dict[str, dict[str, StoredPosition]] = {}
        self._announced: dict[str, tuple[int, int]] = {}
        self._idle_due = self._beat_due = self._turn_due = 0.0
        self._signalled = False
        self._queue_full = Condition(
            log, "writer.announcements_wait", "writer.announcements_go_on", writer=writer.pattern
        )

    # --- called by other threads ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread unless it was started already."""
        if self._thread is None:
            wake_up = self._wake_up = WakeUp()
            name = f"replsite-writer-{self._writer.name}"
            self._thread = threading.Thread(target=self._run, args=(wake_up,), name=name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Makes the thread look for work now. This is cheap, and takes no lock, so the garbage collector may call it, too."""
        wake_up = self._wake_up
        if self._signalled or wake_up is None:
            return
        self._signalled = True
        wake_up.ring()

    def drain(self, timeout_seconds: float) -> bool:
        """Waits until no ID is pending and every position is announced.

        Returns false if the time is up first, or if the thread has ended.
        """
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if self._is_drained():
                return True
            if self._thread is None or not self._thread.is_alive():
                return False
            self.wake()
            time.sleep(0.002)
        return False

    def stop(self) -> None:
        """Ends the thread and waits for it, 10 seconds at most."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._signalled = False
            self.wake()
            thread.join(timeout=10)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _run(self, wake_up: WakeUp) -> None:
        try:
            self._turns(wake_up)
        finally:
            # The writer and this object refer to each other, so otherwise only the garbage collector would close the pipe.
            self._wake_up = None

    def _turns(self, wake_up: WakeUp) -> None:
        while not self._stop.is_set():
            try:
                if self._writer.has_lock:
                    self._turn(wake_up)
                elif self._writer.condition is WriterCondition.FENCED:
                    self._pause(RETRY_SECONDS)
                    self._announced = {}
                    self._writer.hold_again()
            except (StreamError, *driver.connection_gone) as error:
                log.debug("writer.retry", writer=self._writer.name, error=str(error))
                self._pause(RETRY_SECONDS)
            except Exception:
                log.exception("writer.background_failed", writer=self._writer.name)
                self._pause(RETRY_SECONDS)

    def _turn(self, wake_up: WakeUp) -> None:
        self._wait(wake_up)
        now = time.monotonic()
        with self._writer.control_cursor() as cursor:
            self._receive(cursor)
            self._find_out(cursor, now)
            self._find_heads(cursor, now)
            self._share_positions()
            self._announce(cursor, now)
            if self._writer.control.notifies:  # our own notification may have come back with the answer: saves a turn
                self._receive(cursor)
            if now >= self._beat_due:
                self._beat_due = now + stream_settings().heartbeat_seconds
                heartbeat.beat(cursor, self._writer, self._writer.in_doubt.open_transactions())
                dead_writers.resolve_dead_writers(cursor, self._writer.name)
            self._finish_drain()

    def _find_out(self, cursor: Any, now: float) -> None:
        """Asks the database about the transactions of this process whose end is unknown.

        Fences the process if it keeps ``MOST_LOCKS_KEPT`` advisory locks or more, each for a message whose answer was
        lost.
        """
        in_doubt = self._writer.in_doubt
        in_doubt.ask_outcomes(cursor, now)
        in_doubt.settle(cursor, self._writer.name, self._writer.trackers)
        if in_doubt.locks_kept >= MOST_LOCKS_KEPT:
            self._writer.fenced("many appends lost their connection; a new lease frees the locks that keep them out")

    def _finish_drain(self) -> None:
        """Retires the writer if an operator asked it to leave and nothing is pending any more."""
        if self._writer.drain_asked_by and self._is_drained() and self._writer.finish_drain(LEAVE_SECONDS):
            self._stop.set()

    def _is_drained(self) -> bool:
        """Returns true if every transaction of this process has ended and every fact of it is announced."""
        return self._writer.in_doubt.is_empty and not self._due(idle_too=False)

    def _wait(self, wake_up: WakeUp) -> None:
        """Sleeps until there is something to do: a wake-up, a notification, or the next due time."""
        now = time.monotonic()
        due = [self._beat_due]
        if self._writer.control.notifies:
            due.append(now)  # they came with the answer to another statement, so the socket does not become readable
        if (looks := self._judge.due_seconds) is not None:
            due.append(now + looks)
        due += self._writer.in_doubt.due(now)
        if self._due(idle_too=False):
            due.append(now)
        elif self._due(idle_too=True) or self._at_unknown_heads():
            due.append(self._idle_due)
        try:
            ready = driver.ready_to_read([wake_up, self._writer.control], min(due) - now)
        except (OSError, ValueError, *driver.connection_gone) as error:
            self._writer.fenced(f"control connection lost: {error}")
            return
        if wake_up in ready:
            self._take_signal(wake_up)
        # Work that arrives within the gap is done together. The first work after a pause is done at once.
        time.sleep(max(0.0, self._turn_due - time.monotonic()))

    def _take_signal(self, wake_up: WakeUp) -> None:
        wake_up.hush()
        # The flag is reset only after the pipe was read. A wake-up between the two writes nothing, and its work is done in this
        # turn. In the other order, the flag is reset, B sets it and writes a byte, and the read takes B's byte. The pipe would
        # then be empty while the flag is set, and no later wake-up would write.
        self._signalled = False

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)  # wake-ups do not shorten it, so that retries never become a busy loop

    # --- receive notifications ------------------------------------------------------------------------------------

    def _receive(self, cursor: Any) -> None:
        control = self._writer.control
        control.poll()
        heard = [(notify.pid, notify.payload) for notify in control.notifies]
        own = (control.get_backend_pid(), self._writer.name)
        # With a new control connection or name, everything that was verified or read under the old one is forgotten.
        if self._judge.own != own:
            self._judge, self._looked = NotificationFilter(own), {}
        notifications = self._judge.judge(heard, lambda: nullcontext(cursor))
        looks = {notification.stream for notification in notifications if notification.position is None}
        try:
            self._take_over(cursor, heard, notifications, looks)
        except BaseException:
            self._judge.queue_again(looks)  # the filter names each stream to read only once, so queue it again
            raise
        del control.notifies[: len(heard)]  # only now: after an error, the next turn applies all of them again

    def _take_over(
        self,
        cursor: Any,
        heard: Sequence[tuple[int, str]],
        notifications: Sequence[PositionNotification],
        looks: Collection[str],
    ) -> None:
        """Applies notifications to the trackers of this process.

        First reads the stored positions of the streams in ``looks``, and applies these positions.
        """
        # The table is read first: what is read now covers everything that was received. Example: B enters the stream at 5 and
        # reserves 6, and C announces 7. If 7 were applied before B is known, the linear position would pass 6.
        found = self._read_own_positions(cursor, looks)
        shown: dict[str, dict[str, StoredPosition | NotifiedPosition]] = {name: {**at} for name, at in found.items()}
        for notification in notifications:
            if notification.position is not None:
                stored = shown.setdefault(notification.stream, {})
                stored[notification.writer] = NotifiedPosition(notification.position)
        watcher.before_shown(shown, self._writer.using)
        for stream, looked in found.items():
            self._writer.trackers[stream].learn(*active_and_retired(looked))
        came: set[str] = set()
        for notification in notifications:
            if notification.position is not None:
                if notification.writer == self._writer.name:
                    came.add(notification.stream)
                self._advance(notification.stream, notification.writer, notification.position, came)
        said = [
            PositionNotification.parse(payload)
            for session, payload in heard
            if (session, self._writer.name) == self._judge.own
        ]
        came |= {
            notification.stream
            for notification in said
            if notification.writer == self._writer.name and notification.position is not None
        }
        self._writer.tenure.entering -= came  # only now: after an error, a repetition must find it unchanged

    def _advance(self, stream: str, writer: str, position: int, came: Collection[str]) -> None:
        """Applies a writer's announced position to the tracker of the stream, and to those of the sharing streams.

        Sharing streams take their IDs from the same sequence. After this process has entered a stream, the stream's
        tracker ignores positions until the notification of the entry has come back (``Tenure.entering``). ``came`` are
        the streams for which it has come back by now.
        """
        for other in lookup.get(stream).sharing:
            if (sister := self._writer.trackers.get(other.name)) is not None:
                sister.observe(position)
        tracker = self._writer.trackers.get(stream)
        if tracker is not None and (stream in came or stream not in self._writer.tenure.entering):
            tracker.advance(writer, position)

    def _read_own_positions(self, cursor: Any, streams: Collection[str]) -> dict[str, dict[str, StoredPosition]]:
        """Returns the stored positions of those of ``streams`` that this process writes.

        If this writer is no longer active on one of them, an operator may have asked the writer to leave. Then makes a
        heartbeat due at once, which reads whether an operator did.
        """
        trackers = self._writer.trackers
        wanted = [stream for stream in streams if stream in trackers]
        if not wanted:
            return {}
        found = possible_positions(cursor, wanted, self._looked)
        self._looked.update(found)
        own = [stored[self._writer.name] for stored in found.values() if self._writer.name in stored]
        if any(at.state != ACTIVE for at in own):
            self._beat_due = 0.0  # perhaps we are asked to leave
        return found

    def _share_positions(self) -> None:
        """Passes the highest complete ID of each stream on to the other streams with the same sequence.

        An ID that one of these streams has taken is never used by another, so the ID is complete for all of them.
        """
        trackers = self._writer.trackers
        for stream in [lookup.get(name) for name in list(trackers)]:
            tracker = trackers[stream.name]
            top = max(tracker.announceable, tracker.last_write)
            for other in stream.sharing:
                if other.name in trackers and trackers[other.name].announceable < top:
                    trackers[other.name].observe(top)

    # --- announce -------------------------------------------------------------------------------------------------

    def _due(self, *, idle_too: bool) -> dict[str, tuple[int, int]]:
        """Returns ``{stream: (position, ID of the last own fact)}`` for the streams whose position must be announced.

        If ``idle_too`` is false, returns only streams with a new fact of this process. On the other streams this
        writer is idle and only follows other writers. The announcements of these streams can wait for the announce
        interval.
        """
        due = {}
        for stream, tracker in list(self._writer.trackers.items()):
            now_at = (tracker.announceable, tracker.last_write)
            position, last_write = self._announced.get(stream, (0, 0))
            if now_at[0] > position and (idle_too or now_at[1] > last_write):
                due[stream] = now_at
        return due

    def _at_unknown_heads(self) -> list[tuple[str, PositionTracker]]:
        """Returns (name, tracker) of the streams whose sequence may be ahead of all known IDs.

        On these streams a failed append may have taken IDs that no process knows, and this process has no other ID
        pending.
        """
        return [(name, tracker) for name, tracker in list(self._writer.trackers.items()) if tracker.has_lost_ids]

    def _find_heads(self, cursor: Any, now: float) -> None:
        """Takes one new ID from the sequence of each stream of ``_at_unknown_heads``. Completes this ID without a fact.

        The lost IDs lie below the new ID, so the position may then pass them.
        """
        for name, tracker in self._at_unknown_heads() if now >= self._idle_due else ():
            fetch, ids = tracker.begin_fetch(), []
            try:
                cursor.execute("SELECT nextval(%s)", [lookup.get(name).declaration.sequence])
                ids = [row[0] for row in cursor.fetchall()]
            finally:
                tracker.end_fetch(fetch, ids)
                tracker.complete(ids, written=False)

    def _announce(self, cursor: Any, now: float) -> None:
        due = self._due(idle_too=now >= self._idle_due)
        if not due:
            return
        signs = [lookup.get(stream).sign for stream in due]
        given = {
            "streams": list(due),
            "positions": [at * sign for (at, _), sign in zip(due.values(), signs, strict=True)],
            "sequences": [lookup.get(stream).declaration.sequence for stream in due],
            "last_writes": [last * sign for (_, last), sign in zip(due.values(), signs, strict=True)],
            "words": [self._words.take(stream) for stream in due],
            "name": self._writer.name,
            "lease": self._writer.lease,
            "channel": driver.channel(cursor, CHANNEL),
            "lasting": self._may_be_forgotten(due),
        }
        try:
            driver.execute_prepared(cursor, _ANNOUNCE, given)
        except driver.notify_queue_full as error:
            self._queue_full.begins(error, do=_QUEUE_FULL)
            driver.notify_queue_usage(cursor)
            self._turn_due = now + RETRY_SECONDS
            return
        self._queue_full.ends()
        if cursor.rowcount < len(due):
            self._check_sequences(cursor, due)
        self._announced.update(due)
        self._turn_due = now + ANNOUNCE_GAP_SECONDS
        self._idle_due = now + stream_settings().announce_interval_seconds

    def _check_sequences(self, cursor: Any, due: Mapping[str, tuple[int, int]]) -> None:
        """Fences the process if its position on a stream lies above the last ID of the stream's sequence.

        Called if not all announcements were stored. Most often the reason is harmless: the table already has the
        position. But if the sequence never gave out the ID, the tracker cannot be trusted. Then the process starts
        again from the tables, under a new lease.
        """
        for stream, (position, _) in due.items():
            given_out = lookup.get(stream).sequence_value(cursor)
            if position > max(given_out, 1):
                self._writer.fenced(
                    f"its position {position} on {stream} is above the sequence, which is at {given_out}"
                )

    def _may_be_forgotten(self, due: Mapping[str, tuple[int, int]]) -> bool:
        """Returns true if this process rolled back an ID at or above one of the positions in ``due``.

        If no commit has written an ID to the disk, a crash of the server could make the sequence give out the ID
        again.
        """
        trackers = self._writer.trackers
        return any(position <= trackers[stream].last_rolled_back for stream, (position, _) in due.items())
