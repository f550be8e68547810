"""The readers of this torture. Each runs in a thread of the orchestrator, and begins again after each lost connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import psycopg2

from streams.holds.look import Seen, look
from streams.reading.position_store import SESSION, PositionStore, Unconfirmed
from tests.torture.holds.tables import STREAMS, WRITERS, Stream

__all__ = ["Announced", "Outside", "Reader", "Readers", "facts_sql", "linear", "vector"]

_INSIDE = "INSERT INTO handled SELECT %(reader)s, %(stream)s, mark FROM ({facts}) AS f WHERE id > %(after)s AND id <= %(upto)s"


def facts_sql(stream: Stream) -> str:
    """All facts of a stream: positive ID, writer and mark."""
    return " UNION ALL ".join(
        f"SELECT {stream.sign} * stream_id AS id, instance_name AS writer, mark FROM {table}" for table in stream.tables
    )


class Reader:
    """A reader in the database: its cursor moves in the transaction in which the facts are handled."""

    def __init__(self, name: str, upto: Callable[[Seen], Mapping[str, int]]) -> None:
        self.name, self._upto = name, upto

    def step(self, cursor: Any) -> bool:
        """Look, then handle what is complete. Returns whether a cursor moved."""
        moved = False
        for stream, seen in look(cursor).items():
            for writer, upto in self._upto(seen).items():
                moved |= self._handle(cursor, stream, writer, upto)
        return moved

    def _handle(self, cursor: Any, stream: str, writer: str, upto: int) -> bool:
        here = {"reader": self.name, "stream": stream, "writer": writer, "upto": upto, "start": STREAMS[stream].start}
        cursor.execute("BEGIN")
        cursor.execute(
            "INSERT INTO cursors VALUES (%(reader)s, %(stream)s, %(writer)s, %(start)s) ON CONFLICT DO NOTHING", here
        )
        cursor.execute(
            "SELECT position FROM cursors WHERE (reader, stream, writer) = (%(reader)s, %(stream)s, %(writer)s) FOR UPDATE",
            here,
        )
        (here["after"],) = cursor.fetchone()
        if upto > here["after"]:
            mine = " AND writer = %(writer)s" if writer else ""
            cursor.execute(_INSIDE.format(facts=facts_sql(STREAMS[stream])) + mine, here)
            cursor.execute(
                "UPDATE cursors SET position = %(upto)s WHERE (reader, stream, writer) = (%(reader)s, %(stream)s, %(writer)s)",
                here,
            )
        cursor.execute("COMMIT")
        return bool(upto > here["after"])


def linear(seen: Seen) -> dict[str, int]:
    """One position for all writers."""
    return {"": seen.position}


def vector(seen: Seen) -> dict[str, int]:
    """One position for each writer."""
    return {writer: seen.position_of(writer) for writer in WRITERS}


class Announced:
    """The looker of the program, and what it says to those outside."""

    def __init__(self, *, confirms: bool) -> None:
        self.positions: dict[str, dict[str, int]] = {}
        """Stream -> writer -> position."""
        self._confirms = confirms
        self._session: tuple[Any, PositionStore] = (None, PositionStore())

    def step(self, cursor: Any) -> bool:
        """Look, store, announce."""
        if self._session[0] is not cursor.connection:
            cursor.execute(SESSION)
            if not self._confirms:
                cursor.execute("SET synchronous_commit = off")
            self._session = cursor.connection, PositionStore()
        try:
            told = self._session[1].store(cursor, time.monotonic())
        except Unconfirmed:  # the server ended the session at this moment
            return False
        cursor.execute(
            "SELECT stream, instance_name, abs(position) FROM streams_streamposition WHERE stream = ANY(%s)", [told]
        )
        found: dict[str, dict[str, int]] = {}
        for stream, writer, position in cursor.fetchall():
            found.setdefault(stream, {})[writer] = position
        self.positions.update(found)
        return bool(told)


class Outside:
    """A reader that outlives crashes of the server with what it read, at one position for all writers or one for each."""

    def __init__(self, announced: Announced, *, by_writer: bool) -> None:
        self.facts: dict[str, list[tuple[int, str]]] = {stream: [] for stream in STREAMS}
        self._announced, self._by_writer = announced, by_writer
        self._at: dict[str, dict[str, int]] = {stream: {} for stream in STREAMS}

    def reached(self, stream: str) -> int | None:
        """The position up to which it has read; null if no writer was announced."""
        return min(self._at[stream].values(), default=None)

    def step(self, cursor: Any) -> bool:
        """Read what was announced."""
        moved = False
        for stream, positions in list(self._announced.positions.items()):
            wanted = positions if self._by_writer else {"": min(positions.values())}
            at = self._at[stream]
            base = min(at.values(), default=STREAMS[stream].start)
            # A writer that was not announced before has no facts up to the lowest position that was. Noted before anything is
            # read: this session may be ended between two writers, and the first of them is not the lowest position then.
            at.update({writer: base for writer in wanted if writer not in at})
            for writer, upto in wanted.items():
                if upto > (after := at[writer]):
                    mine = "AND writer = %s" if writer else ""
                    cursor.execute(
                        f"SELECT id, mark FROM ({facts_sql(STREAMS[stream])}) AS f WHERE id > %s AND id <= %s {mine} "
                        "ORDER BY id", [after, upto, *([writer] if writer else [])])  # fmt: skip
                    self.facts[stream] += cursor.fetchall()
                    moved = True
                at[writer] = max(upto, after)
        return moved


class Readers:
    """Threads that call ``step`` again and again."""

    def __init__(self, parameters: Callable[[], dict[str, Any]]) -> None:
        self._parameters = parameters
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def start(self, step: Callable[[Any], bool]) -> None:
        """Begin to call it, in a thread and on a connection of its own."""
        self._threads.append(threading.Thread(target=self._run, args=(step,), daemon=True))
        self._threads[-1].start()

    def stop(self) -> None:
        """End all of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, step: Callable[[Any], bool]) -> None:
        while not self._stop.is_set():
            try:
                with closing(psycopg2.connect(**self._parameters(), application_name="reader")) as connection:
                    connection.autocommit = True
                    with connection.cursor() as cursor:
                        while not self._stop.is_set():
                            if not step(cursor):
                                time.sleep(0.002)  # nothing was new
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                time.sleep(0.05)  # the server is down, or this session was ended
            except psycopg2.Error as error:
                self.errors.append(f"{error.pgcode} {error}".strip())
                return
