"""The memory of a process of what changed when, fed from the rows of the streams; and those who wait for more.

One ``HotFeed`` per process and database alias, begun when it is asked for the first time and kept. A thread hears pokes, reads
the rows that they tell of from the tables, and only then lets the position show (``token``). Own facts are fed as soon as this
process knows that they are complete, by whoever asks first or by that thread, whichever comes earlier; whatever else
moves a position in this process (``streams.cache_feed.before_advance``) has it fed before.

Everything is forgotten, and remembered anew from the newest rows, when the connection was lost (pokes may be missing), when a
stored position is lower than one that was heard (the database was restored), and of one stream when rows were trimmed before
they were fed or when it began anew. Whoever waits is woken then, to look for itself.

Two locks: ``_feeding`` for whoever reads rows, in order; ``_memory`` for the memory, held for
microseconds, never while a query runs, so that questions do not wait for the feeding.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from events.errors import TooManyWaiters
from events.hot_concerns import Concern, Kind, concerns_of, followed, rule_of
from events.hot_rows import TooFarBehind, lane_rows, lanes_of, newest_rows
from events.hot_stream import At, HotStream, Lane
from events.hot_waiters import HotWaiter, HotWaiters
from events.joined_rooms import joined_rooms, rooms_of_users
from events.waking import wake
from streams import database, epochs, registry
from streams.cache_store import MISSING, CacheStore
from streams.conf import stream_settings
from streams.errors import ResyncNeeded
from streams.logs import get_logger
from streams.pokes import Poke, PokeListener
from streams.positions import RETIRED, linear_position
from streams.readers import StoredPosition, stored_positions
from streams.tokens import VectorToken
from streams.writers import current_writer

__all__ = ["HotFeed", "HotFigures"]

log = get_logger(__name__)
START_SECONDS = 10.0
Positions = dict[str, dict[str, StoredPosition]]
#: Streams whose rows about a user make the rooms that are remembered of that user old.
_ABOUT_MEMBERSHIPS = ("events", "caches")
#: (stream, lane) -> position up to which it is to be fed.
Reaches = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class HotFigures:
    """How much a process remembers, who waits, and what happened: ``woken``, ``refused``, and why a memory began anew."""

    waiting: int
    users: int
    entries: Mapping[str, int]
    counts: Mapping[str, int]


class _Restored(Exception):
    """A position is lower than it was."""


class _Listener(PokeListener):
    def __init__(self, feed: HotFeed, using: str) -> None:
        super().__init__(feed.heard, using, "hot")
        self._feed = feed

    def lost(self) -> None:
        self._feed.lost()

    def nudged(self) -> None:
        if self._feed.is_hearing:
            self._feed.feed_own()
        else:
            self._feed.heard([])


class HotFeed:
    """The memory of one process on one database."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.is_hearing = False
        self.epoch = ""
        settings = stream_settings()
        self._limit = settings.hot_entries
        self._memory = threading.Lock()
        self._feeding = threading.RLock()
        self._asking = threading.Lock()
        self._begun = threading.Event()
        self._counts: Counter[str] = Counter()
        self._streams: dict[str, HotStream] = {}
        self._rooms = CacheStore(self._limit)
        self._waiters = HotWaiters(settings.hot_waiter_limit)
        self._feeding_connection = database.KeptConnection(using, "replsite hot", reads_in_order=True)
        self._asking_connection = database.KeptConnection(using, "replsite rooms of users")
        self._listener = _Listener(self, using)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Connect and remember the newest rows; False when the database is away."""
        try:
            self._listener.start()
        except database.OperationalError as error:
            log.warning("hot.not_hearing", error=str(error).strip())
            return False
        self._begun.wait(START_SECONDS)
        return self.is_hearing

    def stop(self) -> None:
        """End the thread; those who wait are woken."""
        self.forget()
        self._listener.stop()
        with self._memory:
            everybody = self._waiters.take_all()
        wake(everybody)
        with self._feeding:
            self._feeding_connection.close()
        with self._asking:
            self._asking_connection.close()

    def lost(self) -> None:
        """The connection is gone, and pokes with it."""
        self._counts["connection"] += 1
        self.forget()

    def forget(self) -> None:
        """Nothing is known any more, until the newest rows are read again."""
        with self._memory:
            self.is_hearing = False
            self._streams = {}
            self._rooms.drop_all()

    # --- what is remembered -----------------------------------------------------------------------------------------

    def positions(self) -> dict[str, At]:
        """Up to where each stream is fed; empty while nothing is heard."""
        self._see_own()
        with self._memory:
            return {name: stream.at for name, stream in self._streams.items()}

    def ask(self, user_id: str, since: VectorToken) -> tuple[VectorToken, frozenset[str], frozenset[str] | None, bool]:
        """(Up to where, joined rooms there, those that may have changed, whether memberships may have), as one.

        None: everything may have changed.
        """
        self._see_own()
        for _ in range(3):
            with self._memory:
                events = self._streams.get("events")
                if events is None:
                    break
                now, rooms = events.token, self._rooms.get((user_id,))
                if rooms is not MISSING:
                    changed = events.changes[Kind.ROOM].changed_among(rooms, since)
                    return now, rooms, changed, events.changes[Kind.USER].may_have_changed(user_id, since)
                ticket = self._rooms.begin((user_id,))
            try:
                rooms = self._read_rooms(user_id, now)
                with self._memory:
                    if self.is_hearing:
                        self._rooms.finish(ticket, rooms)
            finally:
                self._rooms.abandon(ticket)
        return self._ask_the_tables(user_id)

    def changed(self, stream_name: str, kind: Kind, since: VectorToken) -> frozenset[str] | None:
        """The entities of that kind that rows of the stream concerned since; None: nobody knows."""
        with self._memory:
            stream = self._streams.get(stream_name)
            return None if stream is None else stream.changes[kind].changed_since(since)

    def concerns(self, user_id: str, since: Mapping[str, At], names: Iterable[str]) -> list[str]:
        """Those of the streams of which something may concern the user since."""
        rooms = self.ask(user_id, VectorToken(0))[1]
        with self._memory:
            return [name for name in names if self._may_concern(name, user_id, rooms, since.get(name))]

    def _may_concern(self, name: str, user_id: str, rooms: frozenset[str], at: At | None) -> bool:
        stream = self._streams.get(name)
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

    def _read_rooms(self, user_id: str, now: VectorToken) -> frozenset[str]:
        with self._asking, self._asking_connection.cursor() as cursor:
            return joined_rooms(cursor, user_id, now)

    def _ask_the_tables(self, user_id: str) -> tuple[VectorToken, frozenset[str], None, bool]:
        """When nothing is remembered, or what is changes faster than it can be read."""
        with self._asking, self._asking_connection.cursor() as cursor:
            stored = stored_positions(cursor, ["events"]).get("events", {})
            base = linear_position(stored.values(), registry.get("events").declaration.empty_position)
            positions = {writer: at.position for writer, at in stored.items()}
            writer = current_writer(self.using)
            tracker = writer.trackers.get("events") if writer.has_lock else None
            if tracker is not None:  # own facts need not be announced yet
                positions[writer.name] = max(positions.get(writer.name, 0), tracker.own_maximum)
            now = VectorToken.of(base, positions)
            return now, joined_rooms(cursor, user_id, now), None, True

    # --- those who wait ---------------------------------------------------------------------------------------------

    def wait(self, user_id: str, since: Mapping[str, At], signal: Any) -> HotWaiter | None:
        """Wait until something may concern the user that these positions do not cover; None: there is something already.

        While nothing is heard it waits for that: everybody is woken then. Raises ``TooManyWaiters``.
        """
        rooms = self.ask(user_id, VectorToken(0))[1]
        with self._memory:
            if self.is_hearing and any(self._may_concern(name, user_id, rooms, since.get(name)) for name in followed()):
                return None
            waiter = HotWaiter(user_id, rooms, signal)
            if not self._waiters.add(waiter):
                self._counts["refused"] += 1
                raise TooManyWaiters(
                    f"{len(self._waiters)} wait in this process already (REPLSITE_HOT_WAITER_LIMIT); ask again in a moment, or "
                    f"of another process."
                )
            return waiter

    def figures(self) -> HotFigures:
        """How much there is."""
        with self._memory:
            entries = {name: sum(map(len, stream.changes.values())) for name, stream in self._streams.items()}
            return HotFigures(len(self._waiters), len(self._rooms), entries, Counter(self._counts))

    def leave(self, waiter: HotWaiter) -> None:
        """It waits no more."""
        with self._memory:
            self._waiters.leave(waiter)

    def waiting(self) -> int:
        """How many wait."""
        with self._memory:
            return len(self._waiters)

    # --- feeding ----------------------------------------------------------------------------------------------------

    def own_moved(self) -> None:
        """This process completed facts of its own: have them fed at once, by the listener's thread."""
        self._listener.nudge()

    def heard(self, pokes: Sequence[Poke]) -> None:
        """Feed what these pokes tell of, before anybody is shown their positions; none: look at everything.

        In the listener's thread, and in those that move positions in this process. Blocks.
        """
        try:
            with self._feeding, self._feeding_connection.cursor() as cursor:
                if not self.is_hearing:
                    self._begin(cursor)
                elif pokes:
                    self._feed_pokes(cursor, pokes)
                else:
                    self._look(cursor, None)
        except _Restored:
            log.warning("hot.restored", database=self.using)
            self._fail("restored")
        except BaseException:
            self._fail("error")
            raise
        self._begun.set()

    def _fail(self, reason: str) -> None:
        """What was read may be incomplete: forget, and have the listener's thread begin anew."""
        self._counts[reason] += 1
        self.forget()
        self._listener.nudge()

    def feed_own(self) -> None:
        """Feed the facts that this process completed itself."""
        if not self.is_hearing or not self._own_reaches():
            return
        try:
            with self._feeding, self._feeding_connection.cursor() as cursor:
                self._feed(cursor, self._own_reaches())
        except BaseException:
            self._fail("error")
            raise

    def _see_own(self) -> None:
        """A commit of this process is seen by whoever asks after it."""
        if self._own_reaches():
            self.feed_own()

    def _own_reaches(self) -> Reaches:
        writer = current_writer(self.using)
        trackers = writer.trackers if writer.has_lock else {}
        found: Reaches = {}
        for name, stream in list(self._streams.items()):
            tracker = trackers.get(name)
            if tracker is not None and not stream.in_memory:
                own = tracker.own_maximum
                if min(tracker.last_write, own) > stream.fed.get(writer.name, stream.base):
                    found[name, writer.name] = own
        return found

    def _begin(self, cursor: Any) -> None:
        self.epoch = epochs.current_epoch(cursor)
        names = [name for name in followed() if registry.find(name) is not None]
        found = stored_positions(cursor, names)
        streams = {name: self._begun_stream(cursor, name, found.get(name, {})) for name in names}
        with self._memory:
            self._streams = streams
            self._rooms.drop_all()
            self.is_hearing = True
            everybody = self._waiters.take_all()
        wake(everybody)

    def _begun_stream(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> HotStream:
        declaration = registry.get(name).declaration
        generation = max((at.generation for at in stored.values()), default=0) if declaration.in_memory else None
        stream = HotStream(name, rule_of(name), self._limit, generation)
        stream.base = linear_position(stored.values(), declaration.empty_position)
        stream.positions = {writer: at.position for writer, at in stored.items() if at.state != RETIRED}
        stream.fed = lanes_of(declaration, stored)
        newest = newest_rows(cursor, declaration, stream.fed, self._limit)
        stream.begin(newest.floors)
        for row in sorted(newest.rows, key=lambda row: row.token):
            stream.note(row.writer, row.token, row.row)
        return stream

    def _feed_pokes(self, cursor: Any, pokes: Sequence[Poke]) -> None:
        look: set[str] = set()
        reaches: Reaches = {}
        for poke in pokes:
            stream = self._streams.get(poke.stream)
            if stream is None:
                if concerns_of(poke.stream) is not None:  # it joined after the beginning
                    look.add(poke.stream)
            elif poke.position is None or stream.in_memory or not stream.knows(poke.writer):
                look.add(poke.stream)
            elif poke.position > stream.positions[poke.writer]:
                reaches[poke.stream, poke.writer] = max(poke.position, reaches.get((poke.stream, poke.writer), 0))
        if look:
            self._look(cursor, sorted(look))
        if reaches:
            self._feed(cursor, reaches, announced=True)

    def _look(self, cursor: Any, names: Sequence[str] | None) -> None:
        """Feed up to the stored positions."""
        looked = [name for name in (followed() if names is None else names) if registry.find(name) is not None]
        found = stored_positions(cursor, looked)
        reaches: Reaches = {}
        for name in looked:
            stored = found.get(name, {})
            if self._began_anew(name, stored):
                self._replace(cursor, name, stored)
            else:
                reaches |= self._learn(name, stored)
        self._feed(cursor, reaches)
        with self._memory:
            for name in looked:
                if (stream := self._streams.get(name)) is not None:
                    stream.advance(())

    def _began_anew(self, name: str, stored: Mapping[str, StoredPosition]) -> bool:
        stream = self._streams.get(name)
        if stream is None:
            return True
        if not stream.in_memory:
            return False
        return max((at.generation for at in stored.values()), default=0) != stream.generation

    def _learn(self, name: str, stored: Mapping[str, StoredPosition]) -> Reaches:
        """The writers that there are now; their positions count once their rows are fed."""
        stream = self._streams.get(name)
        declaration = registry.get(name).declaration
        if stream is None:  # forgotten meanwhile
            return {}
        if any(at.position < stream.positions.get(writer, 0) for writer, at in stored.items()):
            raise _Restored
        with self._memory:
            stream.positions = {writer: at.position for writer, at in stored.items() if at.state != RETIRED}
        return {(name, lane): upto for lane, upto in lanes_of(declaration, stored).items()}

    def _replace(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> None:
        """Begin a stream's memory anew; whoever waits has to look."""
        stream = self._begun_stream(cursor, name, stored)
        with self._memory:
            self._streams[name] = stream
            if name == "events":
                self._rooms.drop_all()
            everybody = self._waiters.take_all()
        wake(everybody)

    def _feed(self, cursor: Any, reaches: Reaches, *, announced: bool = False) -> None:
        """Read the rows up to these positions, remember them, show the positions, and wake whom they concern."""
        read: list[tuple[HotStream, Lane, list[Any]]] = []
        for (name, writer), upto in reaches.items():
            stream = self._streams.get(name)
            lane = stream.lane(writer, upto) if stream is not None else None
            if stream is None or lane is None:
                continue
            try:
                read.append((stream, lane, lane_rows(cursor, registry.get(name).declaration, lane)))
            except (ResyncNeeded, TooFarBehind) as error:
                self._counts["trimmed" if isinstance(error, ResyncNeeded) else "behind"] += 1
                log.warning("hot.began_anew", stream=name, writer=writer, reason=str(error) or "too far behind")
                self._replace(cursor, name, stored_positions(cursor, [name]).get(name, {}))
        rooms_of_contacts = self._rooms_of_contacts(cursor, read)
        woken = self._remember(reaches if announced else {}, read, rooms_of_contacts)
        wake(woken)

    def _rooms_of_contacts(
        self, cursor: Any, read: Sequence[tuple[HotStream, Lane, list[Any]]]
    ) -> Mapping[str, frozenset[str]] | None:
        """Where those are joined who are a matter of all that they share rooms with; None when nobody waits."""
        concerns = [c for stream, _, rows in read for row in rows for c in stream.concerns(row.row)]
        contacts = {entity for kind, entity in concerns if kind is Kind.CONTACT}
        if not contacts:
            return {}
        return rooms_of_users(cursor, contacts) if self.waiting() else None

    def _remember(
        self,
        announced: Reaches,
        read: Sequence[tuple[HotStream, Lane, list[Any]]],
        rooms_of_contacts: Mapping[str, frozenset[str]] | None,
    ) -> list[HotWaiter]:
        with self._memory:
            concerns: set[Concern] = set()
            for stream, lane, rows in read:
                found = {concern for row in rows for concern in stream.note(row.writer, row.token, row.row)}
                if stream.name in _ABOUT_MEMBERSHIPS:
                    for kind, entity in found:
                        if kind is Kind.USER:
                            self._rooms.drop((entity,))
                concerns |= found
                stream.advance([lane])
            for (name, writer), upto in announced.items():
                if (announcing := self._streams.get(name)) is not None:
                    announcing.heard(writer, upto)
                    announcing.advance(())
            if not self._waiters or not concerns:
                return []
            users = {entity for kind, entity in concerns if kind is not Kind.ROOM}
            rooms = {entity for kind, entity in concerns if kind is Kind.ROOM}
            if rooms_of_contacts is None:  # somebody began to wait just now
                taken = self._waiters.take_all()
            else:
                taken = self._waiters.take(users, rooms.union(*rooms_of_contacts.values()))
            self._counts["woken"] += len(taken)
            return taken
