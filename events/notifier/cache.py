"""What a process remembers of the streams, who waits for more, and the answers to both (pure but for its lock).

One lock, held for microseconds and never while a query runs: what is read under it belongs together. ``events.notifier.feed``
reads the rows and puts them in; whoever is to be woken by that is returned, and woken by the caller after the lock is let go.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from events.notifier.routing import Concern, Kind, followed
from events.notifier.stream_cache import At, HotStream, Lane
from events.notifier.waiters import HotWaiter, HotWaiters
from streams.core.cache_store import MISSING, CacheStore, Ticket
from streams.core.tokens import VectorToken

__all__ = ["ROOMS_PER_USER", "HotFigures", "HotMemory", "Look", "Read", "rooms_of_users"]

#: So many rooms per user that may be remembered are kept, of all users together.
ROOMS_PER_USER = 100
#: Streams whose rows about a user make the rooms that are remembered of that user old.
_ABOUT_MEMBERSHIPS = ("events", "caches")
#: What was read of a lane.
Read = tuple[HotStream, Lane, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class HotFigures:
    """How much a process remembers, who waits, and what happened: ``woken``, ``refused``, and why a memory began anew."""

    waiting: int
    users: int
    entries: Mapping[str, int]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Look:
    """What may have changed for a user up to ``now``, as one."""

    now: VectorToken
    """Up to where in ``events`` the answer is good."""
    rooms: frozenset[str]
    """The rooms that the user is joined to, exactly at ``now``."""
    changed: frozenset[str] | None
    """Those of them in which something may have happened since; None: in any of them."""
    memberships_changed: bool
    """Whether the user's membership of any room may have changed since: joins, leaves, invites, also of rooms unknown here."""

    @property
    def nothing(self) -> bool:
        """Nothing happened that concerns the user."""
        return not self.memberships_changed and self.changed is not None and not self.changed


def rooms_of_users(most_users: int) -> CacheStore:
    """Returns a store of sets of rooms by user; bounded by users, and by rooms of all together."""
    return CacheStore(most_users * ROOMS_PER_USER, lambda rooms: max(ROOMS_PER_USER, len(rooms)))


class HotMemory:
    """The memory; every method takes the lock for itself."""

    def __init__(self, limit: int, waiter_limit: int) -> None:
        self.is_kept = False
        self.streams: Mapping[str, HotStream] = {}
        self._lock = threading.Lock()
        self._rooms = rooms_of_users(limit)
        self._waiters = HotWaiters(waiter_limit)
        self._counts: Counter[str] = Counter()

    # --- answers ----------------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, At]:
        """Up to where each stream is fed; empty while nothing is remembered."""
        with self._lock:
            return {name: stream.at for name, stream in self.streams.items()}

    def ask(self, user_id: str, since: VectorToken) -> Look | tuple[VectorToken, Ticket] | None:
        """The answer, or when the user's rooms are not known up to where to read them; None: nothing is remembered."""
        with self._lock:
            events = self.streams.get("events")
            if events is None:
                return None
            rooms = self._rooms.get((user_id,))
            if rooms is MISSING:
                return events.token, self._rooms.begin((user_id,))
            changed = events.changes[Kind.ROOM].changed_among(rooms, since)
            moved = events.changes[Kind.USER].may_have_changed(user_id, since)
            return Look(events.token, rooms, changed, moved)

    def keep_rooms(self, ticket: Ticket, rooms: frozenset[str] | None) -> None:
        """The rooms that were read (None: they could not be); kept unless they changed meanwhile."""
        with self._lock:
            if rooms is None or not self.is_kept:
                self._rooms.abandon(ticket)
            else:
                self._rooms.finish(ticket, rooms)

    def changed(self, name: str, kind: Kind, since: VectorToken) -> frozenset[str] | None:
        """The entities of that kind that rows of the stream concerned since; None: nobody knows."""
        with self._lock:
            stream = self.streams.get(name)
            return None if stream is None else stream.changes[kind].changed_since(since)

    def concerns(self, user_id: str, rooms: frozenset[str], since: Mapping[str, At], names: Iterable[str]) -> list[str]:
        """Those of the streams of which something may concern the user since."""
        with self._lock:
            return [name for name in names if self._may_concern(name, user_id, rooms, since.get(name))]

    def figures(self) -> HotFigures:
        """How much there is."""
        with self._lock:
            entries = {name: sum(map(len, stream.changes.values())) for name, stream in self.streams.items()}
            return HotFigures(len(self._waiters), len(self._rooms), entries, Counter(self._counts))

    def _may_concern(self, name: str, user_id: str, rooms: frozenset[str], at: At | None) -> bool:
        stream = self.streams.get(name)
        if stream is None or at is None or at.generation != stream.generation:
            return True
        since = at.token
        if stream.token == since:
            return False
        if stream.changes[Kind.USER].may_have_changed(user_id, since):
            return True
        if stream.changes[Kind.ROOM].changed_among(rooms, since) != frozenset():
            return True
        contacts = stream.changes[Kind.CONTACT].changed_since(since)
        return contacts is None or any(self._may_share(user_id, rooms, other) for other in contacts)

    def _may_share(self, user_id: str, rooms: frozenset[str], other: str) -> bool:
        if other == user_id:
            return True
        theirs = self._rooms.get((other,))
        return theirs is MISSING or not rooms.isdisjoint(theirs)

    # --- those who wait ---------------------------------------------------------------------------------------------

    def wait(self, waiter: HotWaiter, since: Mapping[str, At]) -> bool | None:
        """Let it wait, unless something may concern it that these positions do not cover (False), or too many wait (None).

        While nothing is remembered it waits for that: everybody is woken then.
        """
        with self._lock:
            if self.is_kept and any(
                self._may_concern(name, waiter.user_id, waiter.rooms, since.get(name)) for name in followed()
            ):
                return False
            if self._waiters.add(waiter):
                return True
            self._counts["refused"] += 1
            return None

    def leave(self, waiter: HotWaiter) -> bool:
        """It waits no more; False when it was woken before."""
        with self._lock:
            return self._waiters.leave(waiter)

    def everybody(self) -> list[HotWaiter]:
        """Those who wait, all of them; they wait no more."""
        with self._lock:
            return self._waiters.take_all()

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._lock:
            return len(self._waiters)

    # --- what is put in ---------------------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        """It happened once more."""
        with self._lock:
            self._counts[what] += 1

    def forget(self) -> None:
        """Nothing is known any more."""
        with self._lock:
            self.is_kept = False
            self.streams = {}
            self._rooms.drop_all()

    def begin(self, streams: Mapping[str, HotStream]) -> list[HotWaiter]:
        """This is what is remembered now; everybody has to look for themselves."""
        with self._lock:
            self.streams = dict(streams)
            self._rooms.drop_all()
            self.is_kept = True
            return self._waiters.take_all()

    def replace(self, stream: HotStream) -> list[HotWaiter]:
        """The memory of one stream begins anew; everybody has to look."""
        with self._lock:
            self.streams = {**self.streams, stream.name: stream}
            if stream.name in _ABOUT_MEMBERSHIPS:
                self._rooms.drop_all()
            return self._waiters.take_all()

    def learn(self, name: str, positions: Mapping[str, int]) -> None:
        """The writers that there are, and what they announced; it shows as far as it is fed."""
        with self._lock:
            if (stream := self.streams.get(name)) is not None:
                stream.positions = dict(positions)

    def own_written(self, lanes: Iterable[tuple[str, str]]) -> None:
        """This process writes these, (stream, writer), whatever was heard of it by now."""
        with self._lock:
            for name, writer in lanes:
                if (stream := self.streams.get(name)) is not None:
                    stream.writes(writer)

    def remember(
        self, read: Sequence[Read], announced: Mapping[tuple[str, str], int], met: Mapping[str, frozenset[str]] | None
    ) -> list[HotWaiter]:
        """Take these rows in, then let the positions show; those whom the rows concern.

        ``announced``: (stream, writer) -> position, of which the rows are in. ``met``: the rooms of users whose contacts are
        concerned; None when nobody waited as they would have been read.
        """
        with self._lock:
            concerns: set[Concern] = set()
            for stream, lane, rows in read:
                concerns |= self._take_in(stream, rows)
                stream.advance([lane])
            for (name, writer), upto in announced.items():
                if (announcing := self.streams.get(name)) is not None:
                    announcing.heard(writer, upto)
                    announcing.advance(())
            return self._concerned(concerns, met) if concerns and len(self._waiters) else []

    def show(self, names: Iterable[str]) -> None:
        """Let positions show that were learnt, and whose rows are in."""
        with self._lock:
            for name in names:
                if (stream := self.streams.get(name)) is not None:
                    stream.advance(())

    def _take_in(self, stream: HotStream, rows: Sequence[Any]) -> set[Concern]:
        found = {concern for row in rows for concern in stream.note(row.writer, row.token, row.row)}
        if stream.name in _ABOUT_MEMBERSHIPS:
            for kind, entity in found:
                if kind is Kind.USER:
                    self._rooms.drop((entity,))
        return found

    def _concerned(self, concerns: set[Concern], met: Mapping[str, frozenset[str]] | None) -> list[HotWaiter]:
        users = {entity for kind, entity in concerns if kind is not Kind.ROOM}
        rooms = {entity for kind, entity in concerns if kind is Kind.ROOM}
        # None: somebody began to wait just now.
        taken = (
            self._waiters.take_all() if met is None else self._waiters.take_concerned(users, rooms.union(*met.values()))
        )
        self._counts["woken"] += len(taken)
        return taken
