"""Reads the new events of a running Synapse from its PostgreSQL, by writer and stream ordering. Needs no Django.

Nothing is written there. The caller names complete ranges only: the server has announced their ends, after it committed.
So each statement sees all events of its ranges, and there will be no others. A standby does not have them at once, and is
refused.

An outlier that got its place in the graph has a new position, which is in the table ``ex_outlier_stream``. Its row in
``events`` may keep the old position.

Positions of the stream ``backfill`` are positive here, as on the wire. The stream orderings in the table are negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg2

from pipeline.doctor.server_rooms import state_of_group
from pipeline.errors import SourceAway, UnusableSource
from pipeline.frames.sources import synapse_db
from pipeline.frames.sources.parts import BrokenLine, Form, Line
from state.groups.deltas import StateKey

__all__ = ["BACKFILL", "EVENTS", "READ_TABLES", "NewEvent", "Range", "SynapseSource"]

EVENTS, BACKFILL = "events", "backfill"
#: The tables and sequences that the role must be allowed to read, besides those that an import reads.
READ_TABLES = (
    "stream_positions", "ex_outlier_stream", "event_to_state_groups", "state_group_edges", "state_groups_state",
)  # fmt: skip
_SEQUENCES = {EVENTS: "events_stream_seq", BACKFILL: "events_backfill_stream_seq"}
_CONNECT_SECONDS = 10
#: A statement reads some hundred events by index.
_STATEMENT_MS = 60_000
_MAY_READ = """
SELECT name FROM unnest(%s::text[]) AS name
WHERE to_regclass(name) IS NULL OR NOT has_table_privilege(to_regclass(name), 'SELECT')
"""
_MAY_READ_SEQUENCES = """
SELECT coalesce(has_sequence_privilege(to_regclass(name), 'SELECT'), false)
FROM unnest(%s::text[]) WITH ORDINALITY AS given (name, place) ORDER BY place
"""
_POSITIONS = "SELECT stream_name, instance_name, abs(stream_id) FROM stream_positions WHERE stream_name = ANY (%s)"
#: {events}: the positive position in ``events``, {moved}: the same in ``ex_outlier_stream``. Both conditions on the columns
#: themselves are there for the indexes. A row of ``ex_outlier_stream`` may outlive its event. It is left out before the limit,
#: because fewer rows than the limit mean that there are no more.
_NEW = """
WITH wanted AS (
    SELECT * FROM unnest(%(writers)s::text[], %(afters)s::bigint[], %(uptos)s::bigint[]) AS given (writer, after, upto)
), place AS (
    SELECT {events} AS place, e.event_id FROM events e
    JOIN wanted w ON {events} > w.after AND {events} <= w.upto AND {writer_of_event}
    WHERE e.stream_ordering BETWEEN %(first)s AND %(last)s
    UNION ALL
    SELECT {moved}, x.event_id FROM ex_outlier_stream x
    JOIN wanted w ON {moved} > w.after AND {moved} <= w.upto AND {writer_of_move}
    WHERE x.event_stream_ordering BETWEEN %(first)s AND %(last)s
      AND EXISTS (SELECT FROM events e WHERE e.event_id = x.event_id)
    ORDER BY place LIMIT %(limit)s
)
SELECT place.place, e.event_id, r.room_version, e.outlier, x.reason, j.internal_metadata, e.stream_ordering, j.json, e.room_id
FROM place JOIN events e USING (event_id) LEFT JOIN event_json j USING (event_id)
LEFT JOIN rooms r ON r.room_id = e.room_id LEFT JOIN rejections x ON x.event_id = e.event_id
ORDER BY place.place
"""
#: The group after each event, and the group that it is a difference to. Older servers have some edges twice.
_GROUPS = """
SELECT DISTINCT ON (g.event_id) g.event_id, g.state_group, e.prev_state_group
FROM event_to_state_groups g LEFT JOIN state_group_edges e ON e.state_group = g.state_group WHERE g.event_id = ANY (%s)
ORDER BY g.event_id
"""
#: A writer in ``wanted`` is a name. The empty name stands for all others than those in ``known``, and for rows without a name.
_OF_WRITER = """
(x.instance_name = w.writer OR w.writer = '' AND (x.instance_name IS NULL OR x.instance_name <> ALL (%(known)s)))
""".strip()


@dataclass(frozen=True, slots=True)
class Range:
    """The positions of a writer that are to be read: after < position <= upto."""

    after: int
    upto: int


class NewEvent(msgspec.Struct, frozen=True):
    """An event as the server stores it now. ``place`` is the position under which it is new.

    ``broken`` is the reason why it cannot be read. Otherwise ``line`` has its bytes, and what the server says of it.
    """

    place: int
    room_id: str
    line: Line | None
    broken: BrokenLine | None = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state after an event, as the server stores it, and the state of the group below, if there is one."""

    entries: Mapping[StateKey, str]
    below: Mapping[StateKey, str]

    def before(self, key: StateKey, event_id: str) -> Mapping[StateKey, str]:
        """Returns the state before the state event ``event_id``, which has this key."""
        if self.entries.get(key) != event_id:  # it was rejected
            return self.entries
        before = {other: entry for other, entry in self.entries.items() if other != key}
        # The group below is the state before, unless it was chosen to store few rows. Then the entry that the event has
        # replaced is not known.
        if key in self.below and {**before, key: self.below[key]} == self.below:
            before[key] = self.below[key]
        return before


class SynapseSource:
    """A read-only connection to the database of a Synapse. Opens when it is first used, and again after an error.

    Only one thread at a time may use it. All methods raise ``SourceAway`` while the database cannot be read, and
    ``UnusableSource`` if it is none that can be mirrored.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = synapse_db.name_of(url)
        self._connection: Any = None
        self._was_primary = False
        self._given_out: list[str] | None = None
        """The streams of which the sequences can be read. None: not asked yet on this connection."""
        self.opened = 0
        """The number of connections so far. A database that was restored has closed all connections before."""

    def check(self) -> None:
        """Raises ``UnusableSource`` if this is no primary of a Synapse database, or if the role may not read its tables.

        After a connection to a primary a standby is ``SourceAway``: a fail-over is under way, or the URL names both.
        """
        with self._cursor() as cursor:
            synapse_db.check_database(self._connection, Form.POSTGRESQL, self.name)
            cursor.execute("SELECT pg_is_in_recovery()")
            if cursor.fetchone()[0]:
                if self._was_primary:
                    self.close()  # the next attempt may reach the new primary
                    raise SourceAway(f"{self.name} is a standby now")
                raise UnusableSource(
                    f"{self.name} is a standby: the server announces events before they are here, so some would be missed. "
                    "Name the primary."
                )
            self._was_primary = True
            cursor.execute(_MAY_READ, [list(READ_TABLES)])
            if missing := [name for (name,) in cursor.fetchall()]:
                raise UnusableSource(
                    f"{self.name}: the role may not read {', '.join(missing)}, or there is none. As the owner: "
                    f"GRANT SELECT ON {', '.join(missing)} TO the role."
                )

    def stored_positions(self) -> dict[str, dict[str, int]]:
        """Returns the positions that the server has stored: stream -> writer -> position. Everything up to it is complete."""
        found: dict[str, dict[str, int]] = {EVENTS: {}, BACKFILL: {}}
        with self._cursor() as cursor:
            cursor.execute(_POSITIONS, [list(found)])
            for stream, writer, position in cursor.fetchall():
                found[stream][writer] = position
        return found

    def given_out(self) -> dict[str, int]:
        """Returns stream -> the highest ID that its sequence has given out. Leaves out sequences that cannot be read."""
        with self._cursor() as cursor:
            if self._given_out is None:
                cursor.execute(_MAY_READ_SEQUENCES, [list(_SEQUENCES.values())])
                self._given_out = [name for name, (may,) in zip(_SEQUENCES, cursor.fetchall(), strict=True) if may]
            names = self._given_out
            if not names:
                return {}
            cursor.execute("SELECT " + ", ".join(f"(SELECT last_value FROM {_SEQUENCES[name]})" for name in names))
            return dict(zip(names, map(int, cursor.fetchone()), strict=True))

    def read(self, stream: str, ranges: Mapping[str, Range], known: Sequence[str], limit: int) -> list[NewEvent]:
        """Returns the first ``limit`` events of the ranges by position. ``ranges`` maps writers to ranges.

        The writer ``""`` stands for all writers that are not in ``known``.
        """
        after, upto = min(wanted.after for wanted in ranges.values()), max(wanted.upto for wanted in ranges.values())
        values = {
            "writers": list(ranges),
            "afters": [wanted.after for wanted in ranges.values()],
            "uptos": [wanted.upto for wanted in ranges.values()],
            "known": list(known),
            "limit": limit,
        }
        values |= {"first": after + 1, "last": upto} if stream == EVENTS else {"first": -upto, "last": -after - 1}
        with self._cursor() as cursor:
            cursor.execute(_SQL[stream], values)
            return [_event(*row) for row in cursor.fetchall()]

    def states(self, event_ids: Sequence[str]) -> dict[str, StoredState]:
        """Returns the states after these events, as far as the server has them."""
        found: dict[int | None, dict[StateKey, str]] = {None: {}}
        with self._cursor() as cursor:
            cursor.execute(_GROUPS, [list(event_ids)])
            groups = {event_id: (group, below) for event_id, group, below in cursor.fetchall()}
            for group in {group for pair in groups.values() for group in pair if group is not None}:
                stored = state_of_group(self._connection, group)
                found[group] = {key: event_id for key, (event_id, _) in stored.items()}
        return {
            event_id: StoredState(found[group], found[below])
            for event_id, (group, below) in groups.items()
            if found[group]
        }

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _cursor(self) -> Any:
        try:
            if self._connection is None:
                self._open()
            with closing(self._connection.cursor()) as cursor:
                yield cursor
        except (psycopg2.OperationalError, psycopg2.InterfaceError, psycopg2.InternalError) as error:
            self.close()
            raise SourceAway(f"Cannot read {self.name}: {' '.join(str(error).split())}") from error
        except psycopg2.Error as error:
            self.close()
            raise UnusableSource(f"{self.name} cannot be mirrored: {' '.join(str(error).split())}") from error

    def _open(self) -> None:
        self._connection = psycopg2.connect(
            self.url,
            application_name="replsite mirror",
            connect_timeout=_CONNECT_SECONDS,
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
        )
        self._connection.set_session(readonly=True, autocommit=True)
        self.opened += 1
        self._given_out = None
        with closing(self._connection.cursor()) as cursor:
            cursor.execute("SET statement_timeout = %s", [_STATEMENT_MS])


def _event(place: int, *row: Any) -> NewEvent:
    *columns, room_id = row
    line = synapse_db.line_of_row(place, columns)
    return NewEvent(place, room_id, line) if isinstance(line, Line) else NewEvent(place, room_id, None, line)


def _sql(sign: str) -> str:
    return _NEW.format(
        events=f"{sign}e.stream_ordering",
        moved=f"{sign}x.event_stream_ordering",
        writer_of_event=_OF_WRITER.replace("x.", "e."),
        writer_of_move=_OF_WRITER,
    )


_SQL = {EVENTS: _sql(""), BACKFILL: _sql("-")}
