"""Holds the notifier's memory of the streams, and the callers that wait for changes of the streams.

One lock protects everything, so all values that are read under the lock belong to the same moment. The lock is held for
microseconds and never during a query. ``events.notifier.feed`` reads rows and adds them to the memory. A method that
finds waiting callers returns them. The code that called the method wakes them after the lock is released.

The position that a stream *shows* is the position in answers: all rows up to it were fed. Pure except for the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from events.notifier.routing import Concern, Target, routed_streams
from events.notifier.stream_cache import At, RowRange, StreamCache
from events.notifier.waiters import RoutedWaiter, RoutedWaiters
from streams.core.cache_store import MISSING, CacheStore, Ticket
from streams.core.tokens import VectorToken

#: The memory keeps this many rooms times the number of users that it may keep. Each user counts as at least this many.
ROOMS_PER_USER = 100
#: Streams whose rows about a user make the remembered rooms of that user outdated.
_ABOUT_MEMBERSHIPS = ("events", "caches")
#: A stream, a range of its rows, and the rows that were read from this range.
Read = tuple[StreamCache, RowRange, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class NotifierFigures:
    """The size of the notifier's memory in this process, and counts of what happened.

    The keys of ``counts`` are ``woken``, ``refused``, and the reasons why memory was cleared or replaced.
    """

    waiting: int
    users: int
    entries: Mapping[str, int]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UserChanges:
    """The answer for one user: what may have changed up to ``now``. All fields belong to the same moment."""

    now: VectorToken
    """The position in ``events`` up to which the answer is valid."""
    rooms: frozenset[str]
    """The rooms that the user is joined to, exactly at ``now``."""
    changed: frozenset[str] | None
    """Those of ``rooms`` in which something may have happened since, or None if it may be any of them."""
    memberships_changed: bool
    """True if the user's membership of any room may have changed since: join, leave, invite, also of rooms unknown here."""

    @property
    def nothing(self) -> bool:
        return not self.memberships_changed and self.changed is not None and not self.changed


def rooms_cache(most_users: int) -> CacheStore:
    # bounded by the number of users, and by the number of all their rooms together
    return CacheStore(most_users * ROOMS_PER_USER, lambda rooms: max(ROOMS_PER_USER, len(rooms)))


class NotifierCache:
    """The notifier's memory in this process. Every method takes the lock itself."""

    def __init__(self, limit: int, waiter_limit: int) -> None:
        self.is_ready = False
        """False while nothing is answered from the memory: it is empty, or prepared and not up to date yet."""
        self.clearings = 0
        """Counts how often the memory was cleared."""
        self.streams: Mapping[str, StreamCache] = {}
        self._lock = threading.Lock()
        self._rooms = rooms_cache(limit)
        self._waiters = RoutedWaiters(waiter_limit)
        self._counts: Counter[str] = Counter()

    # --- answers ----------------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, At]:
        with self._lock:
            return {name: stream.at for name, stream in self.streams.items()} if self.is_ready else {}

    def ask(self, user_id: str, since: VectorToken) -> UserChanges | tuple[VectorToken, Ticket] | None:
        """Returns the possible changes for a user since the token, if the rooms of the user are known.

        If not, returns a token and a ticket. The caller then reads the user's rooms at this token, and passes them with
        the ticket to ``keep_rooms``. Returns None while nothing is remembered.
        """
        with self._lock:
            events = self.streams.get("events")
            if events is None or not self.is_ready:
                return None
            rooms = self._rooms.get((user_id,))
            if rooms is MISSING:
                return events.token, self._rooms.start((user_id,))
            changed = events.changes[Target.ROOM].changed_among(rooms, since)
            moved = events.changes[Target.USER].may_have_changed(user_id, since)
            return UserChanges(events.token, rooms, changed, moved)

    def keep_rooms(self, ticket: Ticket, rooms: frozenset[str] | None) -> None:
        """Stores the rooms that were read for a ticket (None: they could not be), unless they changed since."""
        with self._lock:
            if rooms is None or not self.is_ready:
                self._rooms.abandon(ticket)
            else:
                self._rooms.finish(ticket, rooms)

    def changed(self, name: str, kind: Target, since: VectorToken) -> frozenset[str] | None:
        """Returns the entities of a kind that changed in the stream after the token, or None if this is not known."""
        with self._lock:
            stream = self.streams.get(name)
            return None if stream is None or not self.is_ready else stream.changes[kind].changed_since(since)

    def concerns(self, user_id: str, rooms: frozenset[str], since: Mapping[str, At], names: Iterable[str]) -> list[str]:
        """Returns the streams among ``names`` that may have news for the user, who is in ``rooms``, after ``since``."""
        with self._lock:
            return [name for name in names if self._may_concern(name, user_id, rooms, since.get(name))]

    def figures(self) -> NotifierFigures:
        with self._lock:
            entries = {name: sum(map(len, stream.changes.values())) for name, stream in self.streams.items()}
            return NotifierFigures(len(self._waiters), len(self._rooms), entries, Counter(self._counts))

    def _may_concern(self, name: str, user_id: str, rooms: frozenset[str], at: At | None) -> bool:
        stream = self.streams.get(name)
        if stream is None or not self.is_ready or at is None or at.generation != stream.generation:
            return True
        since = at.token
        if stream.token == since:
            return False
        if stream.changes[Target.USER].may_have_changed(user_id, since):
            return True
        if stream.changes[Target.ROOM].changed_among(rooms, since) != frozenset():
            return True
        contacts = stream.changes[Target.CONTACT].changed_since(since)
        return contacts is None or any(self._may_share(user_id, rooms, other) for other in contacts)

    def _may_share(self, user_id: str, rooms: frozenset[str], other: str) -> bool:
        if other == user_id:
            return True
        theirs = self._rooms.get((other,))
        return theirs is MISSING or not rooms.isdisjoint(theirs)

    # --- waiting callers --------------------------------------------------------------------------------------------

    def wait(self, waiter: RoutedWaiter, since: Mapping[str, At]) -> bool | None:
        """Registers a waiter and returns true, or returns false if news may concern it already.

        None: too many wait.

        ``since`` has the positions that the waiter knows. While nothing is remembered, it is not known what concerns
        the waiter. Then it is registered, and ``start_answering`` wakes it later.
        """
        # One lock for the question and the registration. A row added between them would be too late for the question,
        # and too early to wake the waiter.
        with self._lock:
            if self.is_ready and any(
                self._may_concern(name, waiter.user_id, waiter.rooms, since.get(name)) for name in routed_streams()
            ):
                return False
            if self._waiters.add(waiter):
                return True
            self._counts["refused"] += 1
            return None

    def leave(self, waiter: RoutedWaiter) -> bool:
        """Removes a waiter. Returns false if the waiter was woken before."""
        with self._lock:
            return self._waiters.leave(waiter)

    def remove_waiters(self) -> list[RoutedWaiter]:
        with self._lock:
            return self._waiters.pop_all()

    @property
    def waiting(self) -> int:
        with self._lock:
            return len(self._waiters)

    # --- feeding ----------------------------------------------------------------------------------------------------

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def clear(self) -> None:
        """Clears the memory. Waiters stay registered."""
        with self._lock:
            self.is_ready = False
            self.clearings += 1
            self.streams = {}
            self._rooms.drop_all()

    def prepare(self, streams: Mapping[str, StreamCache], clearings: int) -> None:
        """Fills the memory with streams that were read from the tables.

        ``clearings`` is the value of ``self.clearings`` before they were read. If the memory was cleared since, they are
        discarded.
        """
        with self._lock:
            # A reads the rows, B loses the connection and clears the memory, A comes here. Notifications may be missing since A's
            # reading, so A's streams must not be used.
            if clearings == self.clearings:
                self.streams = dict(streams)

    def start_answering(self) -> list[RoutedWaiter]:
        """Starts to answer from the memory. Removes and returns all waiters, because they have to ask again."""
        with self._lock:
            self._rooms.drop_all()
            self.is_ready = True
            return self._waiters.pop_all()

    def replace(self, stream: StreamCache) -> list[RoutedWaiter]:
        """Replaces the memory of one stream. Removes and returns all waiters, because they have to ask again."""
        with self._lock:
            self.streams = {**self.streams, stream.name: stream}
            if stream.name in _ABOUT_MEMBERSHIPS:
                self._rooms.drop_all()
            return self._waiters.pop_all()

    def store_positions(self, name: str, positions: Mapping[str, int]) -> None:
        """Stores the announced positions of a stream's writers, shown only as far as its rows are fed."""
        with self._lock:
            if (stream := self.streams.get(name)) is not None:
                stream.positions = dict(positions)

    def add_rows(self, read: Sequence[Read], contact_rooms: Mapping[str, frozenset[str]] | None) -> list[RoutedWaiter]:
        """Adds rows, raises the positions that the streams show, and removes and returns the waiters concerned.

        ``contact_rooms`` has the rooms of each contact that the rows concern, or is None if no caller waited, so that they were
        not read.
        """
        with self._lock:
            concerns: set[Concern] = set()
            # Rows before positions: a position that is shown has to have its rows in the index.
            for stream, row_range, rows in read:
                concerns |= self._add_stream_rows(stream, rows)
                stream.advance([row_range])
            return self._waiters_concerned(concerns, contact_rooms) if concerns and len(self._waiters) else []

    def advance_positions(self, names: Iterable[str]) -> None:
        """Raises the positions that these streams show, as far as their rows are fed."""
        with self._lock:
            for name in names:
                if (stream := self.streams.get(name)) is not None:
                    stream.advance(())

    def _add_stream_rows(self, stream: StreamCache, rows: Sequence[Any]) -> set[Concern]:
        found = {concern for row in rows for concern in stream.add_row(row.instance, row.token, row.row)}
        if stream.name in _ABOUT_MEMBERSHIPS:
            for kind, entity in found:
                if kind is Target.USER:
                    self._rooms.drop((entity,))
        return found

    def _waiters_concerned(
        self, concerns: set[Concern], contact_rooms: Mapping[str, frozenset[str]] | None
    ) -> list[RoutedWaiter]:
        users = {entity for kind, entity in concerns if kind is not Target.ROOM}
        rooms = {entity for kind, entity in concerns if kind is Target.ROOM}
        # If ``contact_rooms`` is None, the rooms of contacts were not read, because no caller waited. Callers may have begun to
        # wait since, and nothing says which of them the rows concern. So all are woken.
        woken = (
            self._waiters.pop_all()
            if contact_rooms is None
            else self._waiters.remove_concerned(users, rooms.union(*contact_rooms.values()))
        )
        self._counts["woken"] += len(woken)
        return woken
