"""Reads events from the database of a Synapse server, on PostgreSQL or in a SQLite file. Needs no Django.

The tables ``events``, ``event_json``, ``rooms`` and ``rejections`` are read, and nothing is written. State groups are
not needed, because state follows from the events. A part is a range of stream orderings. On PostgreSQL all parts read
one snapshot, so the server may keep running. A SQLite file must not change. The values that the server
stored with an event are trusted: stream ordering, outlier, rejected, soft-failed.

A SQLite file may come from an attacker. Its tables can lack unique keys, have defaults for whole events, or have values
of any type in any column. So memory, time and output are bounded by the size of the file and the number of its events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg2
from psycopg2.extensions import parse_dsn

from events.format.parsing import LINE_LIMIT_BYTES
from pipeline.errors import UnusableSource
from pipeline.frames.sources.expansion import FREE_BYTES, REASON
from pipeline.frames.sources.parts import BrokenLine, Form, Line, Part
from streams.db.long_transactions import NO_LIMITS
from streams.runtime.masking import masked

__all__ = [
    "ANNOUNCING",
    "MAGIC",
    "NEWEST_SCHEMA",
    "OLDEST_SCHEMA",
    "Bounds",
    "check_database",
    "inspect",
    "line_of_row",
    "name_of",
    "parts_of",
    "read_rows",
    "share_snapshot",
]

MAGIC = b"SQLite format 3\0"
#: Schema versions of the oldest and the newest Synapse whose databases were tested: 1.43 and 1.163.
OLDEST_SCHEMA, NEWEST_SCHEMA = 63, 94
ROWS_PER_PART = 50_000
_ROWS_PER_FETCH = 500
_CONNECT_SECONDS = 10
_SECRETS = {"password", "sslpassword"}
_NEEDED = {
    "events": ("event_id", "room_id", "type", "stream_ordering", "outlier"),
    "event_json": ("event_id", "json", "internal_metadata"),
    "rooms": ("room_id", "room_version"),
    "rejections": ("event_id", "reason"),
}
_VERSIONS = "SELECT (SELECT max(version) FROM schema_version), (SELECT max(compat_version) FROM schema_compat_version)"
_COLUMNS = {
    Form.POSTGRESQL: "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = ANY (current_schemas(false))",
    # A virtual table has no page of its own. It runs code of its module on whatever the file contains.
    Form.SQLITE: "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
    "WHERE t.type = 'table' AND t.rootpage > 0",
}
_UNPLACED = {
    Form.POSTGRESQL: "SELECT count(*) FROM events WHERE stream_ordering IS NULL",
    Form.SQLITE: "SELECT count(*) FROM events WHERE typeof(stream_ordering) <> 'integer'",
}
#: Ranges of stream orderings with equally many events: first, last + 1, number of events.
_BOUNDS = f"""
SELECT min(stream_ordering), max(stream_ordering) + 1, count(*) FROM (
    SELECT stream_ordering, (row_number() OVER (ORDER BY stream_ordering) - 1) / {ROWS_PER_PART} AS part FROM events
) AS numbered GROUP BY part ORDER BY part
"""
#: For SQLite subqueries, not joins: a file may lack the unique indexes. Then 1,000 rows for one event in each of three tables
#: are a billion rows of a join, and all of them are sorted before the first is read.
_ROWS = {
    Form.POSTGRESQL: """
SELECT e.event_id, r.room_version, e.outlier, x.reason, j.internal_metadata, e.stream_ordering, j.json
FROM events e LEFT JOIN event_json j ON j.event_id = e.event_id
LEFT JOIN rooms r ON r.room_id = e.room_id LEFT JOIN rejections x ON x.event_id = e.event_id
WHERE e.stream_ordering >= %s AND e.stream_ordering < %s {more} ORDER BY e.stream_ordering
""",
    # SQLite does not check that text is valid. If it is read as a blob, it is returned unchanged.
    Form.SQLITE: """
SELECT e.event_id, (SELECT r.room_version FROM rooms r WHERE r.room_id = e.room_id LIMIT 1), e.outlier,
    (SELECT x.reason FROM rejections x WHERE x.event_id = e.event_id LIMIT 1),
    (SELECT j.internal_metadata FROM event_json j WHERE j.event_id = e.event_id LIMIT 1), e.stream_ordering,
    (SELECT CAST(j.json AS BLOB) FROM event_json j WHERE j.event_id = e.event_id LIMIT 1)
FROM events e WHERE e.stream_ordering >= ? AND e.stream_ordering < ? {more} ORDER BY e.stream_ordering
""",
}
#: The create events of old rooms. The version of such a room is stored in its create event only.
ANNOUNCING = """
AND e.type = 'm.room.create'
AND NOT EXISTS (SELECT 1 FROM rooms own WHERE own.room_id = e.room_id AND own.room_version IS NOT NULL)
"""
#: The longest value, row and statement in a SQLite file. The text of the schema is one, too.
_SQLITE_LONGEST_BYTES = 2 * LINE_LIMIT_BYTES
#: The most steps of SQLite's machine for reading a part. An event takes some hundred, if there are indexes on the event IDs.
_SQLITE_FREE_STEPS, _SQLITE_STEPS_PER_EVENT, _SQLITE_STEPS_AT_ONCE = 100_000_000, 2_000, 100_000
Bounds = list[tuple[int, int, int]]


class _Metadata(msgspec.Struct):
    """The field that is read from the column ``internal_metadata``."""

    soft_failed: bool = False


_METADATA = msgspec.json.Decoder(_Metadata)


# --- before anything is read ------------------------------------------------------------------------------------------


def name_of(dsn: str) -> str:
    """Returns a PostgreSQL URL without passwords, for display.

    Raises ``UnusableSource`` if the URL is invalid, or if the end of a password in the URL is ambiguous.
    """
    try:
        parse_dsn(dsn)
        url = urlsplit(dsn)
        # libpq and urlsplit may disagree where a password ends. An "@" after the host shows that urlsplit took a piece of
        # the password for a path, query or fragment. Then the name would contain that piece.
        misread = "@" in url.path + url.query + url.fragment
    except (psycopg2.ProgrammingError, ValueError):
        misread = True
    if misread:
        raise UnusableSource(
            "A postgresql:// URL that was named cannot be read; it is not repeated here, because of its password. Check the "
            "names of its parameters, and write special characters of user name and password as %XX, such as %2F for a slash."
        ) from None
    user, at, host = url.netloc.rpartition("@")
    query = urlencode([(key, value) for key, value in parse_qsl(url.query) if key not in _SECRETS])
    return urlunsplit((url.scheme, user.partition(":")[0] + at + host, url.path, query, ""))


def inspect(form: Form, path: str, name: str) -> tuple[int, Bounds]:
    """Returns (schema version, bounds of the parts).

    The bounds of a part are (first stream ordering, last stream ordering + 1, number of events).

    Raises ``UnusableSource`` if this is no Synapse database with a known schema version. Also raises ``UnusableSource``
    if events have no stream ordering yet.
    """
    try:
        with _opened(form, path) as connection:
            schema = check_database(connection, form, name)
            ((unplaced,),) = _all(connection, _UNPLACED[form])
            if unplaced:
                raise UnusableSource(
                    f"{name}: {unplaced:,} events have no stream_ordering yet. Let the server finish its background updates."
                )
            bounds = [(int(start), int(end), int(rows)) for start, end, rows in _all(connection, _BOUNDS)]
            if bounds and bounds[-1][1] >= 2**63:
                raise UnusableSource(
                    f"{name}: the stream_ordering of an event is {2**63 - 1}, which no server gives out."
                )
            return schema, bounds
    except (psycopg2.Error, sqlite3.Error) as error:
        raise UnusableSource(f"Cannot read {name}: {masked(str(error).strip())}") from error


def check_database(connection: Any, form: Form, name: str) -> int:
    """Returns the schema version. Raises ``UnusableSource`` if this is no Synapse database with a known schema version."""
    _check_tables(connection, form, name)
    return _check_version(connection, name)


def _check_tables(connection: Any, form: Form, name: str) -> None:
    there = {(str(table), str(column)) for table, column in _all(connection, _COLUMNS[form])}
    needed = [(table, column) for table, columns in _NEEDED.items() for column in columns]
    needed += [("schema_version", "version"), ("schema_compat_version", "compat_version")]
    missing = [f"{table}.{column}" for table, column in needed if (table, column) not in there]
    if missing:
        raise UnusableSource(
            f"{name} is not the database of a Synapse server of a version that is known here: it has no {', '.join(missing)}."
        )


def _check_version(connection: Any, name: str) -> int:
    """Returns the database's schema version. Raises ``UnusableSource`` if this code does not know the version.

    A newer schema version is accepted if the database's ``schema_compat_version`` is not above the newest known
    version.
    """
    ((version, compatible),) = _all(connection, _VERSIONS)
    is_known = type(version) is int and type(compatible) is int  # a column of SQLite takes values of any type
    if not is_known or version < OLDEST_SCHEMA or compatible > NEWEST_SCHEMA:
        raise UnusableSource(
            f"{name} has schema version {version!s:.50} (compatible down to {compatible!s:.50}); known are {OLDEST_SCHEMA} to "
            f"{NEWEST_SCHEMA}, and later ones that are compatible down to {NEWEST_SCHEMA}. "
            "Nothing was read. Export the events as JSON Lines instead."
        )
    return int(version)


def parts_of(file: int, form: Form, path: str, name: str, bounds: Sequence[Sequence[int]]) -> list[Part]:
    return [Part(file, path, start, end, form, name, rows) for start, end, rows in bounds]


@contextmanager
def share_snapshot(path: str) -> Iterator[str | None]:
    """Yields the name of an exported snapshot, which is valid within the block.

    Yields None if the database server cannot export a snapshot.
    """
    with _opened(Form.POSTGRESQL, path) as connection:
        snapshot = None
        with suppress(psycopg2.Error):  # for instance, a standby of an old version cannot export one
            ((snapshot,),) = _all(connection, "SELECT pg_export_snapshot()")
        yield snapshot


# --- rows -------------------------------------------------------------------------------------------------------------


def read_rows(part: Part) -> Iterator[Line | BrokenLine]:
    """Yields the part's events by ascending stream ordering. Raises the driver's errors if PostgreSQL is lost."""
    number = size = 0
    # SQLite does not compress, so what is read of a file is no larger than the file. Only defaults of columns, and rows of
    # ``event_json`` that several events share, are stored once and read often.
    most = Path(part.path).stat().st_size + FREE_BYTES if part.form is Form.SQLITE else None
    try:
        for number, row in enumerate(_rows(part), 1):
            line = line_of_row(number, row)
            size += len(line.content) if isinstance(line, Line) else 0
            if most is not None and size > most:
                detail = f"the events are larger than the file, {most:,} bytes; the rest of 50,000 events is left out"
                yield BrokenLine(number, REASON, detail, b"")
                return
            yield line
    except (sqlite3.DatabaseError, OverflowError) as error:
        yield BrokenLine(number + 1, "corrupt-sqlite", f"{error}; the rest of 50,000 events is left out", b"")


def announcing_rows(part: Part) -> Iterator[Line | BrokenLine]:
    """Yields the create events of rooms for which the table ``rooms`` has no room version."""
    with suppress(sqlite3.DatabaseError, OverflowError):  # read_rows reports the error
        for number, row in enumerate(_rows(part, ANNOUNCING), 1):
            yield line_of_row(number, row)


def line_of_row(number: int, row: Sequence[Any]) -> Line | BrokenLine:
    """Returns the event of a row, as the line with this number.

    The columns are event ID, room version, outlier, reason of the rejection, internal metadata, stream ordering, JSON.
    """
    event_id, version, outlier, rejected, metadata, ordering, json = row
    if json is None:
        return BrokenLine(number, "no-json", f"{event_id!s:.300} has no row in event_json", b"")
    content = json.encode() if isinstance(json, str) else bytes(json)
    try:
        soft_failed = _METADATA.decode(metadata or "{}").soft_failed
    except (msgspec.MsgspecError, UnicodeError, TypeError) as error:
        return BrokenLine(number, "not-json", f"internal_metadata of {event_id!s:.300}: {error}", content)
    given = {
        "event_id": event_id,
        "room_version": version,
        "outlier": bool(outlier),
        "rejected_reason": rejected,
        "soft_failed": soft_failed,
        "stream_ordering": ordering,
    }
    return Line(number, content, given)


def _rows(part: Part, more: str = "") -> Iterator[Sequence[Any]]:
    sql = _ROWS[part.form].format(more=more)
    with _opened(part.form, part.path, part.snapshot) as connection:
        if part.form is Form.SQLITE:
            _bound_steps(connection, part.rows or 0)
            yield from connection.execute(sql, (part.start, part.end))  # one by one: 500 of them may be a gigabyte
            return
        with closing(connection.cursor("rows")) as cursor:
            cursor.execute(sql, (part.start, part.end))
            while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                yield from rows


# --- connections ------------------------------------------------------------------------------------------------------


def _opened(form: Form, path: str, snapshot: str | None = None) -> AbstractContextManager[Any]:
    return closing(_postgresql(path, snapshot) if form is Form.POSTGRESQL else _sqlite(path))


def _postgresql(dsn: str, snapshot: str | None) -> Any:
    connection = psycopg2.connect(dsn, application_name="replsite import", connect_timeout=_CONNECT_SECONDS)
    connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
    with connection.cursor() as cursor:
        if snapshot is not None:  # must be the first statement of the transaction
            cursor.execute("SET TRANSACTION SNAPSHOT %s", [snapshot])
        cursor.execute(NO_LIMITS)
    return connection


def _sqlite(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, timeout=_CONNECT_SECONDS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SQLITE_LONGEST_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _bound_steps(connection: sqlite3.Connection, events: int) -> None:
    """Limits the work of the connection's next statements. SQLite interrupts them if they exceed the limit.

    The limit is the number of SQLite's steps that reading ``events`` events may take.
    """
    left = (_SQLITE_FREE_STEPS + events * _SQLITE_STEPS_PER_EVENT) // _SQLITE_STEPS_AT_ONCE

    def is_over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(is_over, _SQLITE_STEPS_AT_ONCE)


def _all(connection: Any, sql: str) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
