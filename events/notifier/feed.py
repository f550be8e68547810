"""Feeding the memory of a process from the rows of the streams, before positions show that cover them.

One ``HotFeed`` per process and database alias, begun when it is asked for the first time and kept. A thread hears pokes, reads
the rows that they tell of from the tables, and only then lets the position show (``events.notifier.cache``). Own facts are fed as
soon as this process knows that they are complete, by whoever asks first or by that thread, whichever comes earlier; whatever else
moves a position in this process (``streams.reading.cache_feed.before_advance``) has it fed before.

Everything is forgotten, and remembered anew from the newest rows, when the connection was lost (pokes may be missing), when a
stored position is lower than one that was heard (the database was restored), and of one stream when rows were trimmed before
they were fed or when it began anew. Whoever waits is woken then, to look for itself.

``_feeding`` is held by whoever reads rows, so that they go in in order; questions do not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from events.errors import TooManyWaiters
from events.notifier.cache import HotFigures, HotMemory, Look, Read
from events.notifier.joined_rooms import joined_rooms, rooms_of_users
from events.notifier.routing import Kind, concerns_of, followed, rule_of
from events.notifier.rows import TooFarBehind, lane_rows, lanes_of, newest_rows
from events.notifier.stream_cache import At, HotStream
from events.notifier.waiters import HotWaiter
from streams import registry
from streams.conf import stream_settings
from streams.core.positions import RETIRED, linear_position
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.reading import cache_feed
from streams.reading.cache_feed import Shown
from streams.reading.pokes import Poke, PokeListener
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition
from streams.runtime.logs import get_logger
from streams.waiting.waking import wake_all
from streams.writing.process import current_writer

__all__ = ["HotFeed"]

log = get_logger(__name__)
START_SECONDS = 10.0
T = TypeVar("T")
#: (stream, lane) -> position up to which it is to be fed.
Reaches = dict[tuple[str, str], int]


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
    """The memory of one process on one database, and the thread that feeds it."""

    def __init__(self, using: str) -> None:
        self.using = using
        settings = stream_settings()
        self._limit = settings.hot_entries
        self.memory = HotMemory(settings.hot_entries, settings.hot_waiter_limit)
        self._feeding = threading.RLock()
        self._asking = threading.Lock()
        self._begun = threading.Event()
        self._feeding_connection = driver.KeptConnection(using, "replsite hot", reads_in_order=True)
        self._asking_connection = driver.KeptConnection(using, "replsite rooms of users")
        self._listener = _Listener(self, using)

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def is_hearing(self) -> bool:
        """Whether anything is remembered, and kept up to date."""
        return self.memory.is_kept

    def start(self) -> bool:
        """Connect and remember the newest rows; False when the database is away."""
        try:
            self._listener.start()
        except driver.OperationalError as error:
            log.warning("hot.not_hearing", error=str(error).strip())
            return False
        self._begun.wait(START_SECONDS)
        return self.is_hearing

    def stop(self) -> None:
        """End the thread; those who wait are woken."""
        self.memory.forget()
        self._listener.stop()
        wake_all(self.memory.everybody())
        with self._feeding:
            self._feeding_connection.close()
        with self._asking:
            self._asking_connection.close()

    def lost(self) -> None:
        """The connection is gone, and pokes with it."""
        self.memory.count("connection")
        self.memory.forget()

    # --- questions --------------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, At]:
        """Up to where each stream is fed; empty while nothing is heard."""
        self._see_own()
        return self.memory.positions()

    def ask(self, user_id: str, since: VectorToken) -> Look:
        """What may have changed for a user, as one."""
        self._see_own()
        for _ in range(3):
            found = self.memory.ask(user_id, since)
            if isinstance(found, Look):
                return found
            if found is None:
                break
            now, ticket = found
            rooms = None
            try:
                rooms = self._read_rooms(user_id, now)
            finally:
                self.memory.keep_rooms(ticket, rooms)
        return self._ask_the_tables(user_id)

    def changed(self, stream: str, kind: Kind, since: VectorToken) -> frozenset[str] | None:
        """The entities of that kind that rows of the stream concerned since; None: nobody knows."""
        return self.memory.changed(stream, kind, since)

    def concerns(self, user_id: str, since: Mapping[str, At], names: Iterable[str]) -> list[str]:
        """Those of the streams of which something may concern the user since."""
        return self.memory.concerns(user_id, self.ask(user_id, VectorToken(0)).rooms, since, names)

    def figures(self) -> HotFigures:
        """How much there is."""
        return self.memory.figures()

    def _read_rooms(self, user_id: str, now: VectorToken) -> frozenset[str]:
        return self._asked(lambda cursor: joined_rooms(cursor, user_id, now))

    def _ask_the_tables(self, user_id: str) -> Look:
        """When nothing is remembered, or what is changes faster than it can be read."""

        def look(cursor: Any) -> Look:
            now = self._stored_position(cursor)
            return Look(now, joined_rooms(cursor, user_id, now), None, True)

        return self._asked(look)

    def _asked(self, question: Callable[[Any], T]) -> T:
        """What a question to the tables answers; asked again on a new connection when the kept one turns out to be gone."""
        with self._asking:
            with suppress(*driver.connection_gone), self._asking_connection.cursor() as cursor:
                return question(cursor)
            with self._asking_connection.cursor() as cursor:
                return question(cursor)

    def _stored_position(self, cursor: Any) -> VectorToken:
        """Where ``events`` is by its table, and by what this process wrote itself: own facts need not be announced yet."""
        stored = self._stored(cursor, ["events"]).get("events", {})
        base = linear_position(stored.values(), registry.get("events").declaration.empty_position)
        positions = {writer: at.position for writer, at in stored.items()}
        writer = current_writer(self.using)
        tracker = writer.trackers.get("events") if writer.has_lock else None
        if tracker is not None:
            positions[writer.name] = max(positions.get(writer.name, 0), tracker.own_maximum)
        return VectorToken.of(base, positions)

    # --- those who wait ---------------------------------------------------------------------------------------------

    def wait(self, user_id: str, since: Mapping[str, At], signal: Any) -> HotWaiter | None:
        """Wait until something may concern the user that these positions do not cover; None: there is something already.

        Raises ``TooManyWaiters``.
        """
        waiter = HotWaiter(user_id, self.ask(user_id, VectorToken(0)).rooms, signal)
        waits = self.memory.wait(waiter, since)
        if waits is None:
            raise TooManyWaiters(
                f"{self.memory.waiting} wait in this process already (REPLSITE_HOT_WAITER_LIMIT); ask again in a moment, or of "
                f"another process."
            )
        return waiter if waits else None

    def leave(self, waiter: HotWaiter) -> bool:
        """It waits no more; False when it was woken before."""
        return self.memory.leave(waiter)

    def waiting(self) -> int:
        """How many wait."""
        return self.memory.waiting

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
        self.memory.count(reason)
        self.memory.forget()
        self._listener.nudge()

    def feed_own(self) -> None:
        """Feed the facts that this process completed itself."""
        if not self.is_hearing or not self._own_reaches():
            return
        try:
            with self._feeding, self._feeding_connection.cursor() as cursor:
                reaches = self._own_reaches()
                self.memory.own_written(reaches)
                self._feed(cursor, reaches)
        except BaseException:
            self._fail("error")
            raise

    def _see_own(self) -> None:
        """A commit of this process is seen by whoever asks after it."""
        if self._own_reaches():
            with suppress(driver.DatabaseError):  # everything is forgotten then, and the tables are asked
                self.feed_own()

    def _own_reaches(self) -> Reaches:
        writer = current_writer(self.using)
        trackers = writer.trackers if writer.has_lock else {}
        found: Reaches = {}
        for name, stream in self.memory.streams.items():
            tracker = trackers.get(name)
            if tracker is not None and not stream.in_memory:
                own = tracker.own_maximum
                if min(tracker.last_write, own) > stream.fed.get(writer.name, stream.base):
                    found[name, writer.name] = own
        return found

    def _begin(self, cursor: Any) -> None:
        names = [name for name in followed() if registry.find(name) is not None]
        found = self._stored(cursor, names)
        wake_all(self.memory.begin({name: self._begun_stream(cursor, name, found.get(name, {})) for name in names}))

    def _begun_stream(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> HotStream:
        declaration = registry.get(name).declaration
        generation = max((at.generation for at in stored.values()), default=0) if declaration.in_memory else None
        stream = HotStream(name, rule_of(name), self._limit, generation)
        stream.base = linear_position(stored.values(), declaration.empty_position)
        stream.positions = _of_active(stored)
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
            stream = self.memory.streams.get(poke.stream)
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
            for (name, writer), upto in reaches.items():
                cache_feed.before_shown({name: {writer: Shown(upto)}}, self.using)
            self._feed(cursor, reaches, announced=True)

    def _look(self, cursor: Any, names: Sequence[str] | None) -> None:
        """Feed up to the stored positions."""
        looked = [name for name in (followed() if names is None else names) if registry.find(name) is not None]
        found = self._stored(cursor, looked)
        reaches: Reaches = {}
        for name in looked:
            stored = found.get(name, {})
            if self._began_anew(name, stored):
                self._replace(cursor, name, stored)
            else:
                reaches |= self._learn(name, stored)
        self._feed(cursor, reaches)
        self.memory.show(looked)

    def _began_anew(self, name: str, stored: Mapping[str, StoredPosition]) -> bool:
        stream = self.memory.streams.get(name)
        if stream is None:
            return True
        if not stream.in_memory:
            return False
        return max((at.generation for at in stored.values()), default=0) != stream.generation

    def _learn(self, name: str, stored: Mapping[str, StoredPosition]) -> Reaches:
        """The writers that there are now; their positions count once their rows are fed."""
        stream = self.memory.streams.get(name)
        declaration = registry.get(name).declaration
        if stream is None:  # forgotten meanwhile
            return {}
        if any(at.position < stream.positions.get(writer, 0) for writer, at in stored.items()):
            raise _Restored
        self.memory.learn(name, _of_active(stored))
        return {(name, lane): upto for lane, upto in lanes_of(declaration, stored).items()}

    def _stored(self, cursor: Any, names: Sequence[str]) -> dict[str, dict[str, StoredPosition]]:
        """The stored positions, after cached values are dropped that they make old: whoever asks here goes on with those."""
        known = {name: {w: Shown(at) for w, at in s.positions.items()} for name, s in list(self.memory.streams.items())}
        found = possible_positions(cursor, names, known)
        cache_feed.before_shown(found, self.using)
        return found

    def _replace(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> None:
        """Begin a stream's memory anew."""
        wake_all(self.memory.replace(self._begun_stream(cursor, name, stored)))

    def _feed(self, cursor: Any, reaches: Reaches, *, announced: bool = False) -> None:
        """Read the rows up to these positions, remember them, show the positions, and wake whom they concern."""
        read: list[Read] = []
        for (name, writer), upto in reaches.items():
            stream = self.memory.streams.get(name)
            lane = stream.lane(writer, upto) if stream is not None else None
            if stream is None or lane is None:
                continue
            try:
                read.append((stream, lane, lane_rows(cursor, registry.get(name).declaration, lane)))
            except (ResyncNeeded, TooFarBehind) as error:
                self.memory.count("trimmed" if isinstance(error, ResyncNeeded) else "behind")
                log.warning("hot.began_anew", stream=name, writer=writer, reason=str(error) or "too far behind")
                self._replace(cursor, name, self._stored(cursor, [name]).get(name, {}))
        met = self._rooms_of_contacts(cursor, read)
        wake_all(self.memory.remember(read, reaches if announced else {}, met))

    def _rooms_of_contacts(self, cursor: Any, read: Sequence[Read]) -> Mapping[str, frozenset[str]] | None:
        """Where those are joined who are a matter of all that they share rooms with; None when nobody waits."""
        concerns = [c for stream, _, rows in read for row in rows for c in stream.concerns(row.row)]
        contacts = {entity for kind, entity in concerns if kind is Kind.CONTACT}
        if not contacts:
            return {}
        return rooms_of_users(cursor, contacts) if self.memory.waiting else None


def _of_active(stored: Mapping[str, StoredPosition]) -> dict[str, int]:
    """The writers that take part in the linear position."""
    return {writer: at.position for writer, at in stored.items() if at.state != RETIRED}
