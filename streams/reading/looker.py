"""The looker of a site: one process looks at all held streams, stores their positions, and tells everybody.

Each process that listens for notifications has a *candidate* for each database alias: a thread that hears the
notifications. The candidate that holds a session lock leads. It looks when it is hinted, every few milliseconds while much
comes, and at least once in ``SAFETY_SECONDS``. It tells the others after the COMMIT of the stored positions was confirmed
(``streams.reading.position_store``).

Nothing depends on the election. Positions in the table only rise, so two lookers do no harm, and the lock only saves work.
So nobody has to prove that a leader is dead: **who hears a hint that nobody answers looks itself**. It takes the lock if
that is free, which PostgreSQL makes it as soon as the session of the leader has ended. If the leader only stands still, its
lock is not free, and the others look for it until it answers again. Nobody hints for facts of ``psql``, so each candidate also
looks once in ``CANDIDATE_SECONDS``.

Positions are stored at once only while somebody *follows* them: whoever does shares a session lock. Where nobody does, such as
with handlers that look for themselves, the leader stores them, and answers the hints, in ``SAFETY_SECONDS``.

Why candidates do not wait for the lock: a session that waits for an advisory lock keeps a snapshot. VACUUM could remove no row
version that is newer than the oldest of these snapshots, and the table of positions has thousands of them a second.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from streams import epochs
from streams.db import driver
from streams.holds.weaknesses import losing
from streams.reading.hints import HINT_GAP_SECONDS, answer_to, answered_word, hinted_word, more_follows, send_payloads
from streams.reading.position_store import SESSION, STANDS_STILL_SECONDS, PositionStore, Unconfirmed
from streams.reading.trust import MAY_WRITE
from streams.runtime.logs import Condition, get_logger

__all__ = [
    "ANSWER_SECONDS",
    "CANDIDATE_SECONDS",
    "SAFETY_SECONDS",
    "Looker",
    "Pace",
    "end_looks",
    "follow",
    "is_session",
    "join",
    "leave",
    "look_now",
    "looker_of",
    "received",
    "register",
]

log = get_logger(__name__)
#: Longest time between two looks of the leader. So long may a fact wait whose writer sends no hint, such as ``psql``, or whose
#: hint was lost. It costs the whole site one look a second, some tenths of a millisecond of the server.
SAFETY_SECONDS = 1.0
#: A hint that is not answered within this time, and up to twice as long by chance, makes a candidate look. A living leader
#: answers within a few milliseconds. By chance, because otherwise all candidates would look at once.
ANSWER_SECONDS = 0.05
#: A candidate without a hint tries to lead this often, give or take a half, and looks once. For sites whose leader ended, or
#: stands still, while nobody hinted.
CANDIDATE_SECONDS = 30.0
#: So long does a candidate believe answers of others than the leader, whose session it knows: of other candidates, of a new
#: leader, or of any role that may connect. Then it looks itself, and asks who leads.
DOUBT_SECONDS = 1.5
#: While nobody follows positions, and there are hints, the leader asks this often whether somebody does.
FOLLOWED_SECONDS = 0.1
#: Pause before rows that another session was changing are tried again.
HINDERED_SECONDS = 0.001
#: Pause after an error, such as a lost connection.
RETRY_SECONDS = 0.2
#: Pause before notifications are sent that the server did not take.
SEND_AGAIN_SECONDS = 1.0
#: Most hints of which a candidate knows that they are not answered.
_MOST_HINTS = 1_000

_LEADER = f"SELECT a.pid {driver.LOCK_HOLDERS} AND {MAY_WRITE}"
_IS_FOLLOWED = f"SELECT EXISTS (SELECT {driver.LOCK_HOLDERS})"
_MAY_STORE = """
SELECT NOT pg_is_in_recovery() AND EXISTS (SELECT FROM streams_held)
   AND has_table_privilege('streams_streamposition', 'UPDATE') AND has_table_privilege('streams_streamposition', 'INSERT')
"""


class Pace:
    """Says when to look next, unless a hint comes. Only one thread at a time may use it.

    ``QUICK_SECONDS`` is the shortest pause between two looks. While facts without a hint may follow, there is a look every few
    milliseconds if each of them finds news, and else fewer, the last of them when no more can follow.
    """

    QUICK_SECONDS = 0.004
    #: A look that takes long, on a server with many locks, is made less often: it takes a fourth of the time at most.
    _SHARE = 3.0

    def __init__(self) -> None:
        self._pause = self.QUICK_SECONDS

    def next_pause(self, duration: float, expected_seconds: float, *, news: bool) -> float:
        """Returns the seconds from the end of a look, which took ``duration`` seconds, to the next one.

        Facts without a hint may come for ``expected_seconds`` from the begin of this look.
        """
        if expected_seconds <= 0.0:
            self._pause = self.QUICK_SECONDS
            return SAFETY_SECONDS
        self._pause = self.QUICK_SECONDS if news else 2 * self._pause
        return max(min(self._pause, expected_seconds - duration), self.QUICK_SECONDS, self._SHARE * duration)


class Looker:
    """The candidate of this process for one database.

    It hears the notifications of one of the process's listeners. Notifications come in one order everywhere, so an answer to
    a hint answers all earlier ones.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._connection = driver.KeptConnection(using, "replsite looker", reads_in_order=True)
        self._store = PositionStore()
        self._is_prepared = False
        self._session = 0
        self._unsent: set[str] = set()
        self._send_due = self._everything_due = 0.0
        self._is_leading = self._stopping = False
        self._news = threading.Condition()
        self._unanswered: OrderedDict[str, float] = OrderedDict()
        """Hints that were heard and not answered: their words, and when they were heard."""
        self._expected_until = -math.inf
        """When facts without a hint of their own cease to be expected."""
        self._followed_until = -math.inf
        self._leader: int | None = None
        self._doubts_since = math.inf
        """When others began to answer hints, while the leader did not."""
        self._thread: threading.Thread | None = None
        self._interrupted = Condition(log, "looker.interrupted", "looker.goes_on", "looker.still_interrupted")
        self._cannot_send = Condition(log, "looker.notifications_wait", "looker.notifications_go_on")

    @property
    def is_leading(self) -> bool:
        """True if this process holds the site's lock, so that others leave the looking to it."""
        return self._is_leading

    def start(self) -> None:
        """Starts the thread, which tries to lead at once."""
        self._thread = threading.Thread(target=self._run, name=f"replsite-looker-{self._using}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, waiting at most 10 s for it. Another process may lead from then on."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def received(self, notifications: Sequence[tuple[int, str]]) -> None:
        """Takes note of the hints and answers among received notifications, which are pairs (session, payload)."""
        now = time.monotonic()
        with self._news:
            for session, payload in notifications:
                if (word := hinted_word(payload)) is not None:
                    self._unanswered.setdefault(word, now)
                    if more_follows(word):
                        self._expected_until = now + HINT_GAP_SECONDS
                    if len(self._unanswered) > _MOST_HINTS:
                        self._unanswered.popitem(last=False)
                    self._news.notify_all()
                elif (word := answered_word(payload)) is not None:
                    if session == self._leader:
                        self._doubts_since = math.inf
                    if word in self._unanswered:
                        while self._unanswered.popitem(last=False)[0] != word:
                            pass
                        if session != self._leader:
                            self._doubts_since = min(self._doubts_since, now)

    def store_once(self, *, even_if_led: bool) -> bool:
        """Looks in the caller's thread, for a candidate that was not started. Returns true if it did.

        Does nothing if another process leads and stores positions at once, unless ``even_if_led``, or if nobody can look at
        this database.
        """
        try:
            if not self._prepare():
                self._connection.close()
                return False
            leads = self._leads()
            try:
                if stores := leads or even_if_led or not self._is_followed():
                    self._store_all()
            finally:
                if leads:
                    with self._connection.cursor() as cursor:
                        cursor.execute("SELECT pg_advisory_unlock(%s)", [driver.looker_key(cursor)])
        except (driver.DatabaseError, Unconfirmed) as error:
            log.debug("looker.not_looked", error=str(error).strip())
            self._give_up()
            return False
        return stores

    def _store_all(self) -> None:
        give_up_at = time.monotonic() + STANDS_STILL_SECONDS
        while self._store_positions(None) and self._store.is_behind:
            pass
        # Another looker has the rows, and has not committed yet. Whoever asks may have appended what is in these rows.
        while self._store.was_hindered and time.monotonic() < give_up_at:
            time.sleep(HINDERED_SECONDS)
            self._store_positions(None)

    def deaf(self) -> None:
        """Forgets all hints: what was sent meanwhile is lost, and the answers with it."""
        with self._news:
            self._unanswered.clear()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_asked = False
        while not self._stopping:
            try:
                if self._prepare() and self._leads():
                    self._lead()
                elif self._is_prepared and is_asked:
                    self._store_positions(self._last_hint())
                else:
                    if self._is_prepared:
                        self._store = PositionStore(writes_all=False)  # others have written what did not rise
                        # A hint that comes from now on is answered by who leads, or makes this candidate look again.
                        self._store_positions(self._last_hint())
                    else:
                        self.deaf()
                    self._give_up()
                self._interrupted.ends()
                is_asked = self._waits_to_be_asked()
            except Exception as error:
                if not isinstance(error, (driver.DatabaseError, Unconfirmed)):
                    log.exception("looker.failed")
                self._interrupted.begins(error)
                self._give_up()
                with self._news:
                    self._news.wait_for(lambda: self._stopping, RETRY_SECONDS)
        self._give_up()

    def close(self) -> None:
        """Closes the connection of a candidate that was not started."""
        self._give_up()

    def _give_up(self) -> None:
        """Closes the connection, which ends the lead. What the store remembers is of this session only."""
        self._is_leading = self._is_prepared = False
        _sessions.discard((self._using, self._session))
        self._store = PositionStore()
        self._connection.close()

    def _prepare(self) -> bool:
        """Prepares the session. Returns false if nobody can look at this database, or not with the role of this process."""
        if not self._is_prepared:
            with self._connection.cursor() as cursor:
                try:
                    cursor.execute(_MAY_STORE)
                except driver.missing:  # before `migrate`
                    return False
                if not cursor.fetchone()[0]:
                    return False
                epochs.readable_epoch(cursor)  # notices a restored database before any position of it is stored
                cursor.execute(SESSION)
                self._session = cursor.connection.info.backend_pid
            _sessions.add((self._using, self._session))
            self._is_prepared = True
        return True

    def _leads(self) -> bool:
        """Takes the site's lock, if it is free."""
        with self._connection.cursor() as cursor:
            key = driver.looker_key(cursor)
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
            self._is_leading = bool(cursor.fetchone()[0])
            if not self._is_leading:
                cursor.execute(_LEADER, [key])
                self._leader = next((pid for (pid,) in cursor.fetchall()), None)
        return self._is_leading

    def _lead(self) -> None:
        """Looks until this candidate is stopped, or an error is raised."""
        pace, quick_from = Pace(), 0.0
        with self._connection.cursor() as cursor:
            for weak in losing(cursor):
                log.error("looker.holds_weak", of=weak.subject, error=weak.problem, do=weak.fix)
        self._store.remembers_rows = True
        while not self._stopping:
            started, word = time.monotonic(), self._last_hint()
            found = self._store_positions(word)
            if self._store.is_behind or (word is not None and self._store.was_hindered):
                self._expected_until = max(self._expected_until, started + HINT_GAP_SECONDS)
            ended = time.monotonic()
            pause = pace.next_pause(ended - started, self._expected_until - started, news=found)
            with self._news:
                self._news.wait_for(lambda: self._stopping or bool(self._unanswered), pause)
            self._rest_unless_followed()
            # Hints that come close to each other are answered by one look. A look that nobody asked for, and that found nothing,
            # keeps no hint waiting.
            if word is not None or found:
                quick_from = ended
            time.sleep(max(0.0, quick_from + Pace.QUICK_SECONDS - time.monotonic()))

    def _rest_unless_followed(self) -> None:
        """Waits, while nobody follows positions, until they are stored in any case."""
        while (rest := self._everything_due - time.monotonic()) > 0 and not self._store.is_behind:
            if self._stopping or self._is_followed():
                return
            with self._news:
                self._news.wait_for(lambda: self._stopping, min(rest, FOLLOWED_SECONDS))

    def _is_followed(self) -> bool:
        """Returns true if somebody follows positions, or did within the last ``SAFETY_SECONDS``."""
        now = time.monotonic()
        if self._is_followed_here():
            return True
        if now >= self._followed_until:
            with self._connection.cursor() as cursor:
                cursor.execute(_IS_FOLLOWED, [driver.followers_key(cursor)])
                if cursor.fetchone()[0]:
                    self._followed_until = now + SAFETY_SECONDS
        return now < self._followed_until

    def _is_followed_here(self) -> bool:
        return any(listener.follows for listener in _ears.get(self._using, ()))

    def _waits_to_be_asked(self) -> bool:
        """Waits until a hint is not answered in time. Returns false if it is time to try to lead without a hint."""
        chance = 1 + random.random()  # noqa: S311 - no secret
        give_up_at = time.monotonic() + CANDIDATE_SECONDS * (0.5 + random.random())  # noqa: S311
        with self._news:
            while not self._stopping:
                now = time.monotonic()
                patience = chance * (ANSWER_SECONDS if self._is_followed_here() else SAFETY_SECONDS)
                doubt = self._doubts_since + DOUBT_SECONDS * chance
                due = min(doubt, next(iter(self._unanswered.values()), give_up_at - patience) + patience)
                if now >= due:
                    self._doubts_since = math.inf
                    return bool(self._unanswered) or now >= doubt
                self._news.wait(due - now)
        return False

    def _last_hint(self) -> str | None:
        """Returns the word of the last hint, and takes all hints for answered."""
        with self._news:
            word = next(reversed(self._unanswered), None)
            self._unanswered.clear()
        return word

    def _store_positions(self, word: str | None) -> bool:
        """Looks, stores positions that rose, and tells everybody. Answers the hint ``word``. Returns true if positions rose."""
        now = time.monotonic()
        everything = now >= self._everything_due
        with self._connection.cursor() as cursor:
            found = self._store.store(cursor, now, everything=everything)
            if everything:
                self._everything_due = now + SAFETY_SECONDS
            # Only now, as the COMMIT of the rows is confirmed.
            for listener in _listeners.get(self._using, ()):
                listener.positions_stored(found)
            self._unsent.update(found)
            self._send(cursor, now, [] if word is None else [answer_to(word)])
        return bool(found)

    def _send(self, cursor: Any, now: float, answers: list[str]) -> None:
        """Names the streams whose positions were stored, unless the server takes no notification at present."""
        if now < self._send_due or not (self._unsent or answers):
            return
        try:
            send_payloads(cursor, [*sorted(self._unsent), *answers])
        except (driver.notify_queue_full, driver.lock_timed_out) as error:
            self._cannot_send.begins(error)
            self._send_due = now + SEND_AGAIN_SECONDS
            if isinstance(error, driver.notify_queue_full):
                driver.notify_queue_usage(cursor)
        else:
            self._unsent.clear()
            self._cannot_send.ends()


# --- a look of the caller -----------------------------------------------------------------------------------------------

_callers: dict[str, tuple[Looker, threading.Lock]] = {}


def look_now(using: str, *, even_if_led: bool) -> bool:
    """Looks, and stores positions, in the caller's thread. Returns false if that is impossible, or another process leads.

    If ``even_if_led`` is true, looks although another process leads, as the caller needs the positions of this moment.
    """
    with _guard:
        looker, busy = _callers.setdefault(using, (Looker(using), threading.Lock()))
    with busy:
        return looker.store_once(even_if_led=even_if_led)


def end_looks() -> None:
    """Closes the connections of ``look_now``."""
    with _guard:
        found = list(_callers.values())
        _callers.clear()
    for looker, busy in found:
        with busy:
            looker.close()


# --- one candidate per database -----------------------------------------------------------------------------------------


class Listener(Protocol):
    """Listens for notifications in this process."""

    follows: bool

    def positions_stored(self, streams: Sequence[str]) -> None:
        """Called when this process has stored positions of these streams. Must be quick."""


_lookers: dict[str, Looker] = {}
#: Database alias -> the listeners that learn what this process stores without a notification.
_listeners: dict[str, tuple[Listener, ...]] = {}
#: The sessions with which this process looks: (alias, PID). Its listeners know already what these notify of.
_sessions: set[tuple[str, int]] = set()
#: Database alias -> the listeners that use the candidate. The first of them is its ear.
_ears: dict[str, list[Listener]] = {}
_guard = threading.Lock()


def register(using: str, listener: Listener) -> None:
    """From now on, calls ``positions_stored`` of this listener. Must be called before the listener reads all positions."""
    with _guard:
        _listeners[using] = (*_listeners.get(using, ()), listener)


def is_session(using: str, session: int) -> bool:
    """Returns true if this process looks with this session, so that its listeners know already what it notifies of."""
    return (using, session) in _sessions


def follow(cursor: Any) -> None:
    """Has positions stored at once as long as the session of this cursor lives."""
    # Whoever holds the lock in another way, so that this one is refused, is taken for a follower.
    cursor.execute("SELECT pg_try_advisory_lock_shared(%s)", [driver.followers_key(cursor)])


def join(using: str, listener: Listener) -> None:
    """Begins to use the candidate of this process, which begins to look if no other process does."""
    with _guard:
        _ears.setdefault(using, []).append(listener)
        if using not in _lookers:
            _lookers[using] = Looker(using)
            _lookers[using].start()


def leave(using: str, listener: Listener) -> None:
    """Ends the use that ``join`` or ``register`` began. The candidate ends with its last user."""
    with _guard:
        _listeners[using] = tuple(other for other in _listeners.get(using, ()) if other is not listener)
        ears = _ears.get(using, [])
        if listener not in ears:
            return
        ears.remove(listener)
        found = _lookers.pop(using, None) if not ears else None
    if found is not None:
        found.stop()


def received(using: str, listener: object, notifications: Sequence[tuple[int, str]] | None) -> None:
    """Passes what a listener received to the candidate. None: its connection is new, so what was sent before may be lost."""
    # With two ears, the second might hear a hint after the first has heard its answer.
    if (ears := _ears.get(using)) and ears[0] is listener and (found := _lookers.get(using)) is not None:
        found.deaf() if notifications is None else found.received(notifications)


def looker_of(using: str) -> Looker | None:
    """Returns the candidate of this process, or None if no listener uses one."""
    return _lookers.get(using)


def _after_fork() -> None:
    """Forgets the candidates of the parent, whose threads and connections the child does not have."""
    global _guard  # noqa: PLW0603
    _lookers.clear()
    _listeners.clear()
    _sessions.clear()
    _ears.clear()
    _callers.clear()
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
