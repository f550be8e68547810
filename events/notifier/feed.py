"""Feeds the notifier's memory with rows of the streams, before answers give out positions that cover these rows.

There is one ``NotifierFeed`` for each process and database alias, started by the first question. The process's watcher
(``streams.reading.watcher``) calls the feed with new positions, before anything in the process shows them. The feed
reads the rows up to these positions from the tables. Only then the feed raises the position that its answers give out
(``events.notifier.cache``).

The memory is cleared, and filled again from the newest rows, in two cases: if the connection was lost (notifications
may be missing), or if a stored position is lower than a known position (the database was restored). The memory of a
single stream is replaced in three cases: its rows were trimmed before they were fed, too many rows would have to be
fed, or it is a stream in memory that was restarted at 0. Waiting callers are then woken, and ask again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from events.errors import TooManyWaiters
from events.notifier.cache import NotifierCache, NotifierFigures, Read, UserChanges
from events.notifier.joined_rooms import joined_rooms, rooms_of_users
from events.notifier.routing import Target, find_rule, routed_streams, rule_of
from events.notifier.rows import TooFarBehind, lane_rows, lanes_of, newest_rows
from events.notifier.stream_cache import At, StreamCache
from events.notifier.waiters import RoutedWaiter
from streams import registry
from streams.conf import stream_settings
from streams.core.positions import RETIRED, linear_position
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.reading import watcher
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition
from streams.reading.watcher import Found, Rank, Subscriber
from streams.runtime.logs import get_logger
from streams.waiting.waking import wake_all

__all__ = ["NotifierFeed"]

log = get_logger(__name__)
RETRY_SECONDS = 0.2
T = TypeVar("T")
#: (stream, lane) -> position up to which to feed.
Reaches = dict[tuple[str, str], int]


class NotifierFeed(Subscriber):
    """The notifier's memory of one database in this process, with the code that keeps it up to date."""

    rank = Rank.NOTIFIER

    def __init__(self, using: str) -> None:
        super().__init__(using)
        settings = stream_settings()
        self._limit = settings.hot_entries
        self.memory = NotifierCache(settings.hot_entries, settings.hot_waiter_limit)
        self._preparing: threading.Thread | None = None
        self._asking = threading.Lock()
        self._asking_connection = driver.KeptConnection(using, "replsite rooms of users")

    # --- life -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends the feeding, wakes callers that wait, and closes the connections."""
        super().stop()
        if (preparing := self._preparing) is not None:
            preparing.join(timeout=10)
        self.memory.forget()
        wake_all(self.memory.everybody())
        with self._asking:
            self._asking_connection.close()

    def lost(self, error: BaseException | None) -> None:
        """Clears the memory, because notifications or rows may be missing."""
        self.memory.count("connection" if error is None else "error")
        self.memory.forget()
        if error is not None:
            log.warning("hot.not_hearing", error=str(error).strip())

    def restored(self) -> None:
        """Clears the memory, because the database was restored and may give out IDs again."""
        if self.memory.is_kept:
            log.warning("hot.restored", database=self.using)
            self.memory.count("restored")
        self.memory.forget()

    # --- questions --------------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, At]:
        """Returns for each stream the position up to which it is fed. Empty while the memory is not filled."""
        return self.memory.positions()

    def ask(self, user_id: str, since: VectorToken) -> UserChanges:
        """Returns the possible changes for a user since a position of ``events``. All fields belong to the same ``now``."""
        # Thread A gets the token 7 and a ticket, and reads Alice's rooms. Meanwhile thread B feeds a membership at 8: the
        # ticket is spoiled, the rooms of 7 are not kept, and A asks again.
        for _ in range(3):
            found = self.memory.ask(user_id, since)
            if isinstance(found, UserChanges):
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

    def changed(self, stream: str, kind: Target, since: VectorToken) -> frozenset[str] | None:
        """Returns the entities of a kind that changed in the stream after the token, or None if this is not known."""
        return self.memory.changed(stream, kind, since)

    def concerns(self, user_id: str, since: Mapping[str, At], names: Iterable[str]) -> list[str]:
        """Returns the streams among ``names`` that may have news for the user since the positions ``since``."""
        return self.memory.concerns(user_id, self.ask(user_id, VectorToken(0)).rooms, since, names)

    def figures(self) -> NotifierFigures:
        """Returns the figures for metrics: sizes, the number of waiting callers, and counters."""
        return self.memory.figures()

    def _read_rooms(self, user_id: str, now: VectorToken) -> frozenset[str]:
        return self._asked(lambda cursor: joined_rooms(cursor, user_id, now))

    def _ask_the_tables(self, user_id: str) -> UserChanges:
        """Answers from the tables instead of the memory. The answer says that any room of the user may have changed.

        Used while the memory is not filled, or if the user's rooms change faster than they can be read. The answer also
        says that the user's memberships may have changed.
        """

        def look(cursor: Any) -> UserChanges:
            now = self._stored_position(cursor)
            return UserChanges(now, joined_rooms(cursor, user_id, now), None, True)

        return self._asked(look)

    def _asked(self, question: Callable[[Any], T]) -> T:
        """Runs a query on the connection that is kept open, and returns the result.

        If this connection was lost, runs the query on a new connection.
        """
        with self._asking:
            with suppress(*driver.connection_gone), self._asking_connection.cursor() as cursor:
                return question(cursor)
            with self._asking_connection.cursor() as cursor:
                return question(cursor)

    def _stored_position(self, cursor: Any) -> VectorToken:
        """Returns the stored position of the stream ``events``."""
        found = possible_positions(cursor, ["events"], {"events": self.watcher.known("events")})
        # A caller continues from these positions, so no cached value that they make outdated may be served after this.
        watcher.before_shown(found, self.using)
        stored = found.get("events", {})
        base = linear_position(stored.values(), registry.get("events").declaration.empty_position)
        positions = {writer: at.position for writer, at in stored.items()}
        return VectorToken.of(base, positions)

    # --- waiting callers --------------------------------------------------------------------------------------------

    def wait(self, user_id: str, since: Mapping[str, At], signal: Any) -> RoutedWaiter | None:
        """Registers a caller that waits for news about the user after the positions ``since``.

        Returns None, without registering, if there may be news already. ``signal`` is what ``wake_all`` wakes: the
        caller's event or future. Raises ``TooManyWaiters``.
        """
        waiter = RoutedWaiter(user_id, self.ask(user_id, VectorToken(0)).rooms, signal)
        waits = self.memory.wait(waiter, since)
        if waits is None:
            raise TooManyWaiters(
                f"{self.memory.waiting} wait in this process already (REPLSITE_HOT_WAITER_LIMIT); ask again in a moment, or of "
                f"another process."
            )
        return waiter if waits else None

    def leave(self, waiter: RoutedWaiter) -> bool:
        """Removes a waiting caller. Returns false if it was woken before."""
        return self.memory.leave(waiter)

    def waiting(self) -> int:
        """Returns the number of waiting callers."""
        return self.memory.waiting

    # --- feeding ----------------------------------------------------------------------------------------------------

    def before(self, cursor: Any, found: Found, *, everything: bool) -> None:
        """Feeds the rows up to the positions ``found``.

        If the memory is empty, a call with ``everything`` starts a thread that fills it from the newest rows. The next
        call with ``everything`` feeds the rows that came meanwhile. From then on, answers come from the memory.
        """
        if self.memory.is_kept:
            self._look(cursor, found, routed_streams() if everything else found)
        elif everything and self.memory.streams:
            self._look(cursor, found, routed_streams())
            wake_all(self.memory.begin())
        elif everything and self._preparing is None:
            self._preparing = threading.Thread(target=self._prepare_again, name="replsite-notifier", daemon=True)
            self._preparing.start()

    def prepare(self) -> None:
        """Reads the newest rows of all streams into the memory.

        The next call of ``before`` adds rows that came meanwhile. Reading may take seconds. Meanwhile the process can
        show new positions, because these wait only for ``before``.
        """
        life = self.memory.life
        with (
            closing(driver.direct_connection(self.using, application_name="replsite notifier")) as connection,
            connection.cursor() as cursor,
        ):
            driver.read_in_order(connection)
            found = possible_positions(cursor)  # positions before rows: all rows up to them are committed
            names = list(filter(_is_fed, routed_streams()))
            self.memory.prepare({name: self._begun_stream(cursor, name, found.get(name, {})) for name in names}, life)

    def _prepare_again(self) -> None:
        try:
            self.prepare()
        except Exception as error:  # noqa: BLE001 - it is tried again
            self.lost(error)
            time.sleep(RETRY_SECONDS)
        self._preparing = None  # before ``look_again``, which starts another thread if the memory was cleared meanwhile
        self.watcher.look_again()

    def _begun_stream(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> StreamCache:
        declaration = registry.get(name).declaration
        generation = max((at.generation for at in stored.values()), default=0) if declaration.in_memory else None
        stream = StreamCache(name, rule_of(name), self._limit, generation)
        stream.base = linear_position(stored.values(), declaration.empty_position)
        stream.positions = _of_active(stored)
        stream.fed = lanes_of(declaration, stored)
        newest = newest_rows(cursor, declaration, stream.fed, self._limit)
        stream.begin(newest.floors)
        for row in sorted(newest.rows, key=lambda row: row.token):
            stream.note(row.writer, row.token, row.row)
        return stream

    def _look(self, cursor: Any, found: Found, names: Iterable[str]) -> None:
        """Feeds the streams ``names`` up to the positions ``found``.

        If a stream is not in the memory yet, or was restarted at 0, its memory is filled from the newest rows instead.
        """
        looked = list(filter(_is_fed, names))
        # The order is: store the positions, read and add the rows up to them, show the positions. If a position showed
        # before its rows, a client could ask for news since 4, get the answer "nothing up to 5", and never get the row at 5.
        reaches: Reaches = {}
        for name in looked:
            stored = found.get(name, {})
            if self._restarted(name, stored):
                self._replace(cursor, name, stored)
            else:
                reaches |= self._learn(name, stored)
        self._feed(cursor, reaches)
        self.memory.show(looked)

    def _restarted(self, name: str, stored: Mapping[str, StoredPosition]) -> bool:
        stream = self.memory.streams.get(name)
        if stream is None:
            return True
        if not stream.in_memory:
            return False
        return max((at.generation for at in stored.values()), default=0) != stream.generation

    def _learn(self, name: str, stored: Mapping[str, StoredPosition]) -> Reaches:
        """Stores the positions of a stream's writers, and returns for each lane the position up to which to feed rows.

        A lane is one writer, or all writers together for a stream in memory. Answers give out the positions once the
        rows up to them are fed.
        """
        stream = self.memory.streams.get(name)
        declaration = registry.get(name).declaration
        if stream is None:  # the memory was cleared meanwhile
            return {}
        self.memory.learn(name, _of_active(stored))
        return {(name, lane): upto for lane, upto in lanes_of(declaration, stored).items()}

    def _replace(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> None:
        wake_all(self.memory.replace(self._begun_stream(cursor, name, stored)))

    def _feed(self, cursor: Any, reaches: Reaches) -> None:
        """Reads the rows up to the positions ``reaches``, and adds them to the memory.

        Raises the positions that answers give out, and wakes the waiting callers that the rows concern.
        """
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
                self._replace(cursor, name, self.watcher.known(name))
        # Read here, because ``remember`` holds the memory's lock, under which no query runs.
        met = self._rooms_of_contacts(cursor, read)
        wake_all(self.memory.remember(read, met))

    def _rooms_of_contacts(self, cursor: Any, read: Sequence[Read]) -> Mapping[str, frozenset[str]] | None:
        """Returns the rooms of each contact that the rows concern. Returns None without a query if no caller waits."""
        concerns = [c for stream, _, rows in read for row in rows for c in stream.concerns(row.row)]
        contacts = {entity for kind, entity in concerns if kind is Target.CONTACT}
        if not contacts:
            return {}
        return rooms_of_users(cursor, contacts) if self.memory.waiting else None


def _is_fed(stream: str) -> bool:
    """Returns true if a stream of this name exists, and has a rule that says which entities its rows concern."""
    return find_rule(stream) is not None and registry.find(stream) is not None


def _of_active(stored: Mapping[str, StoredPosition]) -> dict[str, int]:
    """Returns the positions of the writers that are not retired. Only these positions determine the linear position."""
    return {writer: at.position for writer, at in stored.items() if at.state != RETIRED}
