"""The control loop: one thread on the control connection of a writing process.

The loop applies the notifications of other writers, announces positions, sends heartbeats, and asks the database how
transactions ended whose end is unknown. Other threads only leave work for the loop and wake it. Announcements are
coalesced: all positions that rise while one announcement is under way go out together in the next one.

The control connection does not listen, because statements run on it (``streams.db.driver.ListeningConnection``). The
process's watcher passes the notifications that it receives to the loop.

Assumes that the process holds its writer lock whenever the control connection is used.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
#: Pause after an announcement, as a multiple of the time that it took. So announcements take a seventh of the time at most,
#: however many facts there are. The first announcement after a longer pause goes out at once.
ANNOUNCE_GAP = 6.0
LONGEST_ANNOUNCE_GAP_SECONDS = 0.005
#: Longest wait for the turn that applies the process's own announcements, unless other work makes a turn earlier.
ECHO_SECONDS = 0.05
#: Longest time that our notification waits while other sessions commit notifications. After that, the position is stored alone.
NOTIFY_SECONDS = 0.5
#: Pause after a notification that could not be sent. Meanwhile positions are stored without notifications.
NOTIFY_AGAIN_SECONDS = 1.0
#: Most characters of payloads that wait for the loop. If there are more, they are dropped and the table is read instead.
MOST_WAITING_CHARACTERS = 1_000_000

#: Stores positions, only under the present lease, and never above what the sequence gave out.
_STORE = """
UPDATE streams_streamposition p SET
    position = given.position,
    last_write_position = CASE WHEN given.last_write = 0 THEN p.last_write_position ELSE given.last_write END,
    last_advance_at = clock_timestamp(), updated_at = clock_timestamp()
FROM {given}, streams_instance i
WHERE p.stream = given.stream AND p.instance_name = %(name)s::text AND abs(given.position) > abs(p.position)
  AND abs(given.position) <= greatest(pg_sequence_last_value(to_regclass(given.sequence)), 1)
  AND i.name = %(name)s::text AND i.lease = %(lease)s
RETURNING CASE WHEN %(lasting)s::boolean THEN set_config('synchronous_commit', 'on', true) END"""
#: A commit with notifications waits for any other such commit in the whole server. A role that sends a gigabyte of
#: notifications would make all writers wait for seconds.
_NOTIFY = f"set_config('lock_timeout', '{int(NOTIFY_SECONDS * 1000)}', true), pg_notify(%(channel)s, "
#: Also sends the notifications, in the same statement, so that a notification follows only a stored position.
_ANNOUNCE = f"""{_STORE},
    {_NOTIFY} p.stream || ' ' || p.instance_name || ' ' || abs(p.position) || ' ' || given.words)"""
#: The streams in ``_STORE``: one, which a fact without others has, or several. PostgreSQL needs a third less for one.
_ONE_GIVEN = (
    "(SELECT %(stream)s::text AS stream, %(position)s::bigint AS position, %(last_write)s::bigint AS last_write, "
    "%(sequence)s::text AS sequence, %(words)s::text AS words) AS given"
)
_SEVERAL_GIVEN = (
    "unnest(%(stream)s::text[], %(position)s::bigint[], %(last_write)s::bigint[], %(sequence)s::text[], %(words)s::text[]) "
    "AS given (stream, position, last_write, sequence, words)"
)
_ANNOUNCE_ONE, _ANNOUNCE_SEVERAL = _ANNOUNCE.format(given=_ONE_GIVEN), _ANNOUNCE.format(given=_SEVERAL_GIVEN)
_STORE_SILENTLY = _STORE.format(given=_SEVERAL_GIVEN)
#: Sends the stored positions of this writer once more. Leaves out a position above the sequence: this process did not store it.
_ECHO = f"""
SELECT {_NOTIFY} stream || ' ' || instance_name || ' ' || abs(position))
FROM streams_streamposition JOIN unnest(%(streams)s::text[], %(sequences)s::text[]) AS given (stream, sequence) USING (stream)
WHERE instance_name = %(name)s AND abs(position) <= greatest(pg_sequence_last_value(to_regclass(sequence)), 1)
"""
_QUEUE_FULL = "end the session that LISTENs and keeps a transaction open; the server's log names it"
_QUEUE_LOCKED = "end the session that sends so many notifications; pg_stat_activity shows its COMMIT"


class ControlLoop:
    """The control loop of one writer: its thread, and the methods by which other threads use it."""

    def __init__(self, writer: WriterProcess) -> None:
        self._writer = writer
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake_up: WakeUp | None = None
        self._judge = NotificationFilter()
        self._hearing = threading.Lock()
        self._heard: list[tuple[int, str]] = []
        self._heard_characters = 0
        self._must_look = False
        self._echo_due = math.inf
        """Time of the next turn that applies own announcements that have come back. Infinity: they wake the thread."""
        self._words = OneTimeWords()
        self._looked: dict[str, dict[str, StoredPosition]] = {}
        self._announced: dict[str, tuple[int, int]] = {}
        self._idle_due = self._beat_due = self._turn_due = 0.0
        self._signalled = False
        self._notify_due = 0.0
        self._positions_seen = ""
        """Digest of the stored positions at the heartbeat that last had them read."""
        self._unsaid: set[str] = set()
        self._delayed = Condition(log, "writer.delayed", "writer.goes_on")
        self._cannot_notify = Condition(log, "writer.announcements_wait", "writer.announcements_go_on")

    # --- called by other threads ----------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begins to receive notifications, which the watcher of the process passes on.

        Discards notifications received before.

        Raises the driver's errors.
        """
        with self._hearing:
            self._heard, self._heard_characters, self._must_look = [], 0, False
        if not self._stop.is_set():
            watcher.open_tap(self._writer.using, self._hear)

    def start(self) -> None:
        """Starts the thread unless it was started already."""
        if self._thread is None:
            wake_up = self._wake_up = WakeUp()
            name = f"replsite-writer-{self._writer.name}"
            self._thread = threading.Thread(target=self._run, args=(wake_up,), name=name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Makes the thread look for work now. The call is cheap and takes no lock, so the garbage collector may make it, too."""
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
        watcher.close_tap(self._writer.using, self._hear)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _run(self, wake_up: WakeUp) -> None:
        try:
            self._turns(wake_up)
        finally:
            # The writer and this object refer to each other, so otherwise only the garbage collector would close the pipe.
            self._wake_up = None
            watcher.close_tap(self._writer.using, self._hear)

    def _turns(self, wake_up: WakeUp) -> None:
        while not self._stop.is_set():
            try:
                if self._writer.has_lock:
                    self._turn(wake_up)
                    self._delayed.ends(writer=self._writer.name)
                elif self._writer.condition is WriterCondition.FENCED:
                    self._pause(RETRY_SECONDS)
                    self._announced = {}
                    self._writer.hold_again()
            except (StreamError, *driver.connection_gone) as error:
                if driver.still_works(error):
                    self._delayed.begins(error, writer=self._writer.name)
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
            self._announce_stored(cursor, now)
            self._announce(cursor, now)
            if now >= self._beat_due:
                self._beat_due = now + stream_settings().heartbeat_seconds
                self._beat(cursor)
            self._finish_drain()

    def _beat(self, cursor: Any) -> None:
        """Sends the heartbeat, retires dead writers, and has the stored positions read if they changed since the last heartbeat.

        Other writers may have stored positions without notifications. A notification that a writer entered a stream may
        be lost.
        """
        found = heartbeat.beat(cursor, self._writer, self._writer.in_doubt.open_transactions())
        if found is not None:
            for name in found.silent:
                dead_writers.resolve_writer(cursor, name, self._writer.name)
            if found.positions != self._positions_seen or self._writer.tenure.entering:
                self._positions_seen, self._must_look = found.positions, True

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
        """Retires the writer if an operator asked it to leave, and none of its IDs is pending any more."""
        if self._writer.drain_asked_by and self._is_drained() and self._writer.finish_drain(LEAVE_SECONDS):
            self._stop.set()

    def _is_drained(self) -> bool:
        """Returns true if every transaction of this process has ended and every fact of this process is announced."""
        return self._writer.in_doubt.is_empty and not self._due(idle_too=False)

    def _wait(self, wake_up: WakeUp) -> None:
        """Sleeps until there is something to do: a wake-up, a notification, or the next due time."""
        now = time.monotonic()
        due = [self._beat_due, self._echo_due]
        if self._must_look:
            due.append(now)
        if (looks := self._judge.due_seconds) is not None:
            due.append(now + looks)
        if self._unsaid:
            due.append(self._notify_due)
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

    def _hear(self, heard: Sequence[tuple[int, str]], *, must_look: bool) -> None:
        """Stores notifications for the loop, and wakes the loop. Called by the watcher's thread.

        Does not wake the loop if all these notifications are this process's own announcements, and a turn of the loop
        that applies them is due anyway. That turn is not urgent, and would run while the followers of the announced
        facts need the processor.
        """
        size = sum(len(payload) for _, payload in heard)
        own, is_entering = self._judge.own, bool(self._writer.tenure.entering)
        with self._hearing:
            may_wait = self._echo_due < math.inf and not must_look and not is_entering
            self._heard_characters += size
            if self._heard_characters > MOST_WAITING_CHARACTERS:
                self._heard, self._heard_characters, must_look = [], 0, True
            else:
                self._heard += heard
            self._must_look = self._must_look or must_look
        if not (may_wait and own is not None and all(session == own[0] for session, _ in heard)):
            self.wake()

    def _take_heard(self) -> tuple[list[tuple[int, str]], bool]:
        with self._hearing:
            heard, self._heard, self._heard_characters = self._heard, [], 0
            must_look, self._must_look = self._must_look, False
            self._echo_due = math.inf
        return heard, must_look

    def _receive(self, cursor: Any) -> None:
        control = self._writer.control
        driver.receive(control)  # raises an error if the connection is lost
        heard, must_look = self._take_heard()
        own = (control.info.backend_pid, self._writer.name)
        # With a new control connection or name, everything that was verified or read under the old one is forgotten.
        if self._judge.own != own:
            self._judge, self._looked, self._positions_seen = NotificationFilter(own), {}, ""
        try:
            if must_look:
                self._judge.queue_again(set(self._writer.trackers))
            notifications = self._judge.judge(heard, lambda: nullcontext(cursor))
            looks = {notification.stream for notification in notifications if notification.position is None}
            self._echo_entries(cursor, looks)
            self._take_over(cursor, heard, notifications, looks)
        except BaseException:
            with self._hearing:
                self._must_look = True  # the next turn reads the table instead of applying them again
            raise

    def _echo_entries(self, cursor: Any, looks: Collection[str]) -> None:
        """Announces again that this writer entered streams, if the first notifications have not come back to this process.

        Does so only for the streams in ``looks``, of which notifications may be lost.
        """
        # Without this: the process enters a stream, and the notification of the entry is lost with the watcher's connection.
        # Then the tracker would ignore the notifications of other writers for good.
        if entering := self._writer.tenure.entering.intersection(looks):
            self._notifies(lambda: self._echo(cursor, entering), cursor)

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
        """Applies a writer's announced position to the tracker of the stream, and to the trackers of the sharing streams.

        Sharing streams take their IDs from the same sequence. After this process has entered a stream, the stream's
        tracker ignores positions until the notification of the entry has come back (``Tenure.entering``). ``came`` are
        the streams for which it has come back by now.
        """
        tracker = self._writer.trackers.get(stream)
        # Notifications may come late. Without this: a role sends a position that it made up, its session ends, and this process
        # gets a control session with the same PID. The notification then seems to be its own.
        if writer == self._writer.name and tracker is not None and position > tracker.announceable:
            return
        for other in lookup.get(stream).sharing:
            if (sister := self._writer.trackers.get(other.name)) is not None:
                sister.observe(position)
        if tracker is not None and (stream in came or stream not in self._writer.tenure.entering):
            tracker.advance(writer, position)

    def _read_own_positions(self, cursor: Any, streams: Collection[str]) -> dict[str, dict[str, StoredPosition]]:
        """Returns the stored positions of the streams in ``streams`` that this process writes.

        If this writer is no longer active on one of these streams, an operator may have asked the writer to leave. Then
        makes a heartbeat due at once, which reads from the table whether an operator has asked.
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

        An ID that one of these streams has taken is never used by another stream, so the ID is complete for all these
        streams.
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

        IDs that a failed append may have taken lie below the new ID. So the position may then pass them.
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
        given: dict[str, list[Any]] = {
            "stream": list(due),
            "position": [at * lookup.get(stream).sign for stream, (at, _) in due.items()],
            "sequence": [lookup.get(stream).declaration.sequence for stream in due],
            "last_write": [last * lookup.get(stream).sign for stream, (_, last) in due.items()],
            "words": [self._words.take(stream) for stream in due],
        }
        same: dict[str, Any] = {
            "name": self._writer.name,
            "lease": self._writer.lease,
            "channel": driver.channel(cursor, CHANNEL),
            "lasting": self._may_be_forgotten(due),
        }
        announce = (_ANNOUNCE_SEVERAL, given | same)
        if len(due) == 1:
            announce = (_ANNOUNCE_ONE, {name: values[0] for name, values in given.items()} | same)
        began = time.monotonic()
        with self._hearing:  # before the announcement is sent, which may come back before this thread goes on
            self._echo_due = began + ECHO_SECONDS
        if self._unsaid or not self._notifies(lambda: driver.execute_prepared(cursor, *announce), cursor):
            driver.execute_prepared(cursor, _STORE_SILENTLY, given | same)
            self._unsaid.update(due)
        if cursor.rowcount < len(due):
            self._check_sequences(cursor, due)
        self._announced.update(due)
        ended = time.monotonic()
        self._turn_due = ended + min(ANNOUNCE_GAP * (ended - began), LONGEST_ANNOUNCE_GAP_SECONDS)
        self._idle_due = now + stream_settings().announce_interval_seconds

    def _announce_stored(self, cursor: Any, now: float) -> None:
        """Sends the notifications of positions that were stored without a notification."""
        if (
            self._unsaid
            and now >= self._notify_due
            and self._notifies(lambda: self._echo(cursor, self._unsaid), cursor)
        ):
            self._unsaid = set()

    def _echo(self, cursor: Any, streams: Collection[str]) -> None:
        """Sends the stored positions of this writer on these streams once more."""
        given = {
            "channel": driver.channel(cursor, CHANNEL),
            "name": self._writer.name,
            "streams": sorted(streams),
            "sequences": [lookup.get(stream).declaration.sequence for stream in sorted(streams)],
        }
        cursor.execute(_ECHO, given)

    def _notifies(self, send: Callable[[], None], cursor: Any) -> bool:
        """Calls ``send``, whose statement sends notifications.

        Returns false if the server accepts no notification at present.

        Either the server's queue is full, or other sessions commit so many notifications that the statement would have
        to wait. In both cases nothing is stored.
        """
        try:
            send()
        except (driver.notify_queue_full, driver.lock_timed_out) as error:
            is_full = isinstance(error, driver.notify_queue_full)
            self._cannot_notify.begins(error, writer=self._writer.name, do=_QUEUE_FULL if is_full else _QUEUE_LOCKED)
            if is_full:
                driver.notify_queue_usage(cursor)
            self._notify_due = time.monotonic() + NOTIFY_AGAIN_SECONDS
            return False
        self._cannot_notify.ends(writer=self._writer.name)
        return True

    def _check_sequences(self, cursor: Any, due: Mapping[str, tuple[int, int]]) -> None:
        """Fences the process if its position on a stream lies above the last ID of the stream's sequence.

        Called if not all announcements were stored. In most cases the reason is harmless: the table already has the
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
