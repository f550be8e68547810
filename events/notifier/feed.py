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
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from events.errors import TooManyWaiters
from events.notifier.cache import NotifierCache, NotifierFigures, Read, UserChanges
from events.notifier.joined_rooms import joined_rooms, rooms_of_users
from events.notifier.routing import Target, find_rule, routed_streams, rule_of
from events.notifier.stream_cache import ALL_WRITERS, At, RowRange, StreamCache
from events.notifier.waiters import RoutedWaiter
from streams import registry
from streams.conf import stream_settings
from streams.core.declaration import StreamDeclaration, quoted
from streams.core.positions import RETIRED, linear_position
from streams.core.queries import FollowedRow, order_sql, row_of, selected_sql, token_sql
from streams.core.tokens import VectorToken
from streams.core.watermarks import trim_mark
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.reading import watcher
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition, existing_rows, rows_between
from streams.reading.watcher import Found, Rank, Subscriber
from streams.runtime.logs import get_logger
from streams.waiting.waking import wake_all

log = get_logger(__name__)
RETRY_SECONDS = 0.2
ROWS_PER_READ = 1_000
#: With more rows than this to read, a stream's memory is replaced instead of being fed row by row.
MOST_ROWS = 20_000
T = TypeVar("T")
#: (stream, lane) -> position up to which to feed.
Ends = dict[tuple[str, str], int]


class NotifierFeed(Subscriber):
    """The notifier's memory of one database in this process, with the code that keeps it up to date."""

    rank = Rank.NOTIFIER

    def __init__(self, using: str) -> None:
        super().__init__(using)
        settings = stream_settings()
        self._limit = settings.hot_entries
        self.cache = NotifierCache(settings.hot_entries, settings.hot_waiter_limit)
        self._preparing: threading.Thread | None = None
        self._query_lock = threading.Lock()
        self._query_connection = driver.KeptConnection(using, "replsite rooms of users")

    # --- life -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        super().stop()
        if (preparing := self._preparing) is not None:
            preparing.join(timeout=10)
        self.cache.clear()
        wake_all(self.cache.remove_waiters())
        with self._query_lock:
            self._query_connection.close()

    def lost(self, error: BaseException | None) -> None:
        # notifications or rows may be missing
        self.cache.count("connection" if error is None else "error")
        self.cache.clear()
        if error is not None:
            log.warning("hot.not_hearing", error=str(error).strip())

    def restored(self) -> None:
        # it may give out IDs again
        if self.cache.is_ready:
            log.warning("hot.restored", database=self.using)
            self.cache.count("restored")
        self.cache.clear()

    # --- questions --------------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, At]:
        return self.cache.positions()

    def ask(self, user_id: str, since: VectorToken) -> UserChanges:
        """Returns the possible changes for a user since a position of ``events``. All fields belong to the same ``now``."""
        # Thread A gets the token 7 and a ticket, and reads Alice's rooms. Meanwhile thread B feeds a membership at 8: the
        # ticket is spoiled, the rooms of 7 are not kept, and A asks again.
        for _ in range(3):
            found = self.cache.ask(user_id, since)
            if isinstance(found, UserChanges):
                return found
            if found is None:
                break
            now, ticket = found
            rooms = None
            try:
                rooms = self._query(partial(joined_rooms, user_id=user_id, at=now))
            finally:
                self.cache.keep_rooms(ticket, rooms)
        return self._read_tables(user_id)

    def changed(self, stream: str, kind: Target, since: VectorToken) -> frozenset[str] | None:
        return self.cache.changed(stream, kind, since)

    def concerns(self, user_id: str, since: Mapping[str, At], names: Iterable[str]) -> list[str]:
        """Returns the streams among ``names`` that may have news for the user since the positions ``since``."""
        return self.cache.concerns(user_id, self.ask(user_id, VectorToken(0)).rooms, since, names)

    def figures(self) -> NotifierFigures:
        return self.cache.figures()

    def _read_tables(self, user_id: str) -> UserChanges:
        # While the memory is not filled, or if the user's rooms change faster than they can be read. Anything may have
        # changed.
        def read(cursor: Any) -> UserChanges:
            now = self._stored_position(cursor)
            return UserChanges(now, joined_rooms(cursor, user_id, now), None, True)

        return self._query(read)

    def _query(self, question: Callable[[Any], T]) -> T:
        # on the connection that is kept open, or on a new one if that was lost
        with self._query_lock:
            with suppress(*driver.connection_lost), self._query_connection.cursor() as cursor:
                return question(cursor)
            with self._query_connection.cursor() as cursor:
                return question(cursor)

    def _stored_position(self, cursor: Any) -> VectorToken:
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

        None: there may be news already.

        ``signal`` is what ``wake_all`` wakes: the caller's event or future. Raises ``TooManyWaiters``.
        """
        waiter = RoutedWaiter(user_id, self.ask(user_id, VectorToken(0)).rooms, signal)
        waits = self.cache.wait(waiter, since)
        if waits is None:
            raise TooManyWaiters(
                f"{self.cache.waiting} wait in this process already (REPLSITE_HOT_WAITER_LIMIT); ask again in a moment, or of "
                f"another process."
            )
        return waiter if waits else None

    def leave(self, waiter: RoutedWaiter) -> bool:
        return self.cache.leave(waiter)

    def waiting(self) -> int:
        return self.cache.waiting

    # --- feeding ----------------------------------------------------------------------------------------------------

    def apply(self, cursor: Any, found: Found, *, everything: bool) -> None:
        """Feeds the rows up to the positions ``found``.

        If the memory is empty, a call with ``everything`` starts a thread that fills it from the newest rows. The next
        call with ``everything`` feeds the rows that came meanwhile. From then on, answers come from the memory.
        """
        if self.cache.is_ready:
            self._feed_streams(cursor, found, routed_streams() if everything else found)
        elif everything and self.cache.streams:
            self._feed_streams(cursor, found, routed_streams())
            wake_all(self.cache.start_answering())
        elif everything and self._preparing is None:
            self._preparing = threading.Thread(target=self._prepare_in_thread, name="replsite-notifier", daemon=True)
            self._preparing.start()

    def prepare(self) -> None:
        """Reads the newest rows of all streams into the memory, which may take seconds.

        The next call of ``apply`` adds rows that came meanwhile. New positions are not held up: they wait only for
        ``apply``.
        """
        clearings = self.cache.clearings
        with (
            closing(driver.direct_connection(self.using, application_name="replsite notifier")) as connection,
            connection.cursor() as cursor,
        ):
            driver.read_in_order(connection)
            found = possible_positions(cursor)  # positions before rows: all rows up to them are committed
            names = list(filter(_is_fed, routed_streams()))
            self.cache.prepare(
                {name: self._new_stream_cache(cursor, name, found.get(name, {})) for name in names}, clearings
            )

    def _prepare_in_thread(self) -> None:
        try:
            self.prepare()
        except Exception as error:  # noqa: BLE001 - it is tried again
            self.lost(error)
            time.sleep(RETRY_SECONDS)
        self._preparing = None  # before ``reread``, which starts another thread if the memory was cleared meanwhile
        self.watcher.reread()

    def _new_stream_cache(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> StreamCache:
        declaration = registry.get(name).declaration
        generation = max((at.generation for at in stored.values()), default=0) if declaration.in_memory else None
        stream = StreamCache(name, rule_of(name), self._limit, generation)
        stream.base = linear_position(stored.values(), declaration.empty_position)
        stream.positions = _of_active(stored)
        stream.fed = writer_ends(declaration, stored)
        newest = newest_rows(cursor, declaration, stream.fed, self._limit)
        stream.reset(newest.floors)
        for row in sorted(newest.rows, key=lambda row: row.token):
            stream.add_row(row.instance, row.token, row.row)
        return stream

    def _feed_streams(self, cursor: Any, found: Found, names: Iterable[str]) -> None:
        # A stream that is not in the memory yet, or was restarted at 0, is filled from the newest rows instead.
        fed_streams = list(filter(_is_fed, names))
        # The order is: store the positions, read and add the rows up to them, show the positions. If a position showed
        # before its rows, a client could ask for news since 4, get the answer "nothing up to 5", and never get the row at 5.
        ends: Ends = {}
        for name in fed_streams:
            stored = found.get(name, {})
            if self._restarted(name, stored):
                self._replace(cursor, name, stored)
            else:
                self.cache.store_positions(name, _of_active(stored))
                declaration = registry.get(name).declaration
                ends |= {(name, writer): upto for writer, upto in writer_ends(declaration, stored).items()}
        self._feed(cursor, ends)
        self.cache.advance_positions(fed_streams)

    def _restarted(self, name: str, stored: Mapping[str, StoredPosition]) -> bool:
        stream = self.cache.streams.get(name)
        if stream is None:
            return True
        if not stream.in_memory:
            return False
        return max((at.generation for at in stored.values()), default=0) != stream.generation

    def _replace(self, cursor: Any, name: str, stored: Mapping[str, StoredPosition]) -> None:
        wake_all(self.cache.replace(self._new_stream_cache(cursor, name, stored)))

    def _feed(self, cursor: Any, ends: Ends) -> None:
        read: list[Read] = []
        for (name, writer), upto in ends.items():
            stream = self.cache.streams.get(name)
            row_range = stream.unread_range(writer, upto) if stream is not None else None
            if stream is None or row_range is None:
                continue
            try:
                read.append((stream, row_range, rows_of_range(cursor, registry.get(name).declaration, row_range)))
            except (ResyncNeeded, TooFarBehind) as error:
                self.cache.count("trimmed" if isinstance(error, ResyncNeeded) else "behind")
                log.warning("hot.began_anew", stream=name, writer=writer, reason=str(error) or "too far behind")
                self._replace(cursor, name, self.watcher.known(name))
        # Read here, because ``add_rows`` holds the memory's lock, under which no query runs.
        contact_rooms = self._rooms_of_contacts(cursor, read)
        wake_all(self.cache.add_rows(read, contact_rooms))

    def _rooms_of_contacts(self, cursor: Any, read: Sequence[Read]) -> Mapping[str, frozenset[str]] | None:
        # None, without a query, if no caller waits
        concerns = [c for stream, _, rows in read for row in rows for c in stream.concerns(row.row)]
        contacts = {entity for kind, entity in concerns if kind is Target.CONTACT}
        if not contacts:
            return {}
        return rooms_of_users(cursor, contacts) if self.cache.waiting else None


# --- rows of streams ------------------------------------------------------------------------------------------------


class TooFarBehind(Exception):
    """More than ``MOST_ROWS`` rows would have to be read."""


@dataclass(frozen=True, slots=True)
class Newest:
    # up to ``floors`` (by writer) rows may be missing.
    rows: list[FollowedRow]
    floors: dict[str, int]


def writer_ends(declaration: StreamDeclaration, stored: Mapping[str, StoredPosition]) -> dict[str, int]:
    if declaration.in_memory:
        return {ALL_WRITERS: linear_position(stored.values(), declaration.empty_position)}
    return {writer: at.position for writer, at in stored.items()}


def rows_of_range(cursor: Any, declaration: StreamDeclaration, row_range: RowRange) -> list[FollowedRow]:
    """Returns all rows in the range ``row_range``, in ascending order.

    Raises ``TooFarBehind``, and for a trimmable stream ``ResyncNeeded`` if some rows were trimmed.
    """
    found: list[FollowedRow] = []
    after, writer = row_range.after, row_range.writer or None
    while after < row_range.upto:
        if declaration.trimmable:
            rows, after = rows_between(cursor, declaration, writer, after, row_range.upto, ROWS_PER_READ)
        else:
            writers = None if writer is None else [writer]
            rows, after = existing_rows(cursor, declaration, writers, after, row_range.upto, ROWS_PER_READ)
        found += rows
        if len(found) > MOST_ROWS:
            raise TooFarBehind
    return found


def newest_rows(cursor: Any, declaration: StreamDeclaration, upto: Mapping[str, int], limit: int) -> Newest:
    """Returns the newest rows of a stream, at most ``limit`` from each table.

    ``upto`` maps a writer (or ``ALL_WRITERS``) to the highest position that a row of the lane may have.
    """
    rows: list[FollowedRow] = []
    below = 0
    high = max(upto.values(), default=0)
    for table in declaration.tables:
        columns = ", ".join([token_sql(declaration, table), quoted(table.writer_column), *selected_sql(table)])
        where = f"{quoted(table.id_column)} <= %(high)s::bigint" + (f" AND ({table.where})" if table.where else "")
        order = order_sql(declaration, table, newest_first=True)
        cursor.execute(
            f"SELECT {columns} FROM {quoted(table.name)} WHERE {where} ORDER BY {order} LIMIT %(limit)s::bigint",
            {"high": high, "limit": limit},
        )
        found = cursor.fetchall()
        if len(found) >= limit:
            below = max(below, found[-1][0])  # the oldest fact may have more rows than the limit let in
        make = row_of(table)
        rows += [FollowedRow(declaration.name, writer, token, make(row)) for token, writer, *row in found]
    covered = [row for row in rows if row.token <= upto.get(ALL_WRITERS if declaration.in_memory else row.instance, -1)]
    trimmed = trim_mark(cursor, declaration.name).writers
    trimmed_upto = {ALL_WRITERS: max(trimmed.values(), default=0)} if declaration.in_memory else trimmed
    # Rows below those that were read, and rows that were trimmed, are unknown.
    floors = {writer: max(min(below, at), trimmed_upto.get(writer, 0)) for writer, at in upto.items()}
    return Newest(covered, {writer: at for writer, at in floors.items() if at > 0})


def _is_fed(stream: str) -> bool:
    return find_rule(stream) is not None and registry.find(stream) is not None


def _of_active(stored: Mapping[str, StoredPosition]) -> dict[str, int]:
    # only these determine the linear position
    return {writer: at.position for writer, at in stored.items() if at.state != RETIRED}
