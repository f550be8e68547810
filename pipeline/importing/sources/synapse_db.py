"""Events in the database of a Synapse server, PostgreSQL or a SQLite file: schema check and rows (no Django).

The tables ``events``, ``event_json``, ``rooms`` and ``rejections`` are read, and nothing is written. State groups are
not needed, because state follows from the events. A part is a range of stream orderings. On PostgreSQL all parts read
one snapshot, so the server may keep running. A SQLite file must not change. What the server found out about an event is
trusted: whether it is an outlier, rejected or soft-failed, and its stream ordering.
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

from pipeline.errors import UnusableSource
from pipeline.importing.sources.parts import BrokenLine, Form, Line, Part
from streams.db.long_transactions import NO_LIMITS

__all__ = [
    "MAGIC",
    "NEWEST_SCHEMA",
    "OLDEST_SCHEMA",
    "Bounds",
    "inspect",
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
    Form.SQLITE: "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'",
}
_UNPLACED = "SELECT count(*) FROM events WHERE stream_ordering IS NULL"
#: Ranges of stream orderings with equally many events: first, last + 1, number of events.
_BOUNDS = f"""
SELECT min(stream_ordering), max(stream_ordering) + 1, count(*) FROM (
    SELECT stream_ordering, (row_number() OVER (ORDER BY stream_ordering) - 1) / {ROWS_PER_PART} AS part FROM events
) AS numbered GROUP BY part ORDER BY part
"""
_ROWS = """
SELECT e.event_id, r.room_version, e.outlier, x.reason, j.internal_metadata, e.stream_ordering, {json}
FROM events e LEFT JOIN event_json j ON j.event_id = e.event_id
LEFT JOIN rooms r ON r.room_id = e.room_id LEFT JOIN rejections x ON x.event_id = e.event_id
WHERE e.stream_ordering >= {place} AND e.stream_ordering < {place} {more} ORDER BY e.stream_ordering
"""
#: The create events of old rooms. The version of such a room is stored in its create event only.
_ANNOUNCING = "AND r.room_version IS NULL AND e.type = 'm.room.create'"
#: SQLite does not check that text is valid. If it is read as a blob, it is returned unchanged.
_JSON = {Form.POSTGRESQL: "j.json", Form.SQLITE: "CAST(j.json AS BLOB)"}
_PLACE = {Form.POSTGRESQL: "%s", Form.SQLITE: "?"}
Bounds = list[tuple[int, int, int]]


class _Metadata(msgspec.Struct):
    """The field that is read from the column ``internal_metadata``."""

    soft_failed: bool = False


_METADATA = msgspec.json.Decoder(_Metadata)


# --- before anything is read ------------------------------------------------------------------------------------------


def name_of(dsn: str) -> str:
    """Returns a PostgreSQL URL without passwords, for display.

    Raises ``UnusableSource`` if the URL is invalid, or if it is ambiguous where a password ends.
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
    """Returns the schema version, and for each part (first stream ordering, last one + 1, number of events).

    Raises ``UnusableSource`` if this is not a Synapse database with a known schema, or if events have no stream
    ordering yet.
    """
    try:
        with _opened(form, path) as connection:
            _check_tables(connection, form, name)
            schema = _check_version(connection, name)
            ((unplaced,),) = _all(connection, _UNPLACED)
            if unplaced:
                raise UnusableSource(
                    f"{name}: {unplaced:,} events have no stream_ordering yet. Let the server finish its background updates."
                )
            return schema, [(int(start), int(end), int(rows)) for start, end, rows in _all(connection, _BOUNDS)]
    except (psycopg2.Error, sqlite3.Error) as error:
        raise UnusableSource(f"Cannot read {name}: {str(error).strip()}") from error


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
    """Returns the schema version. Raises ``UnusableSource`` if it is unknown.

    A newer version is accepted if its ``schema_compat_version`` says that servers of the newest known version can use
    it.
    """
    ((version, compatible),) = _all(connection, _VERSIONS)
    if version is None or compatible is None or version < OLDEST_SCHEMA or compatible > NEWEST_SCHEMA:
        raise UnusableSource(
            f"{name} has schema version {version} (compatible down to {compatible}); known are {OLDEST_SCHEMA} to "
            f"{NEWEST_SCHEMA}, and later ones that are compatible down to {NEWEST_SCHEMA}. "
            "Nothing was read. Export the events as JSON Lines instead."
        )
    return int(version)


def parts_of(file: int, form: Form, path: str, name: str, bounds: Sequence[Sequence[int]]) -> list[Part]:
    """Returns a part for each range of stream orderings."""
    return [Part(file, path, start, end, form, name, rows) for start, end, rows in bounds]


@contextmanager
def share_snapshot(path: str) -> Iterator[str | None]:
    """Yields the name of an exported snapshot, which is valid within the block.

    Yields null if the server cannot export a snapshot.
    """
    with _opened(Form.POSTGRESQL, path) as connection:
        snapshot = None
        with suppress(psycopg2.Error):  # for instance, a standby of an old version cannot export one
            ((snapshot,),) = _all(connection, "SELECT pg_export_snapshot()")
        yield snapshot


# --- rows -------------------------------------------------------------------------------------------------------------


def read_rows(part: Part) -> Iterator[Line | BrokenLine]:
    """Yields the part's events by ascending stream ordering. Raises the driver's errors if PostgreSQL is lost."""
    number = 0
    try:
        for number, row in enumerate(_rows(part), 1):
            yield _line(number, row)
    except sqlite3.DatabaseError as error:
        yield BrokenLine(number + 1, "corrupt-sqlite", f"{error}; the rest of 50,000 events is left out", b"")


def announcing_rows(part: Part) -> Iterator[Line | BrokenLine]:
    """Yields the create events of rooms without a version in ``rooms``."""
    with suppress(sqlite3.DatabaseError):  # read_rows reports the error
        for number, row in enumerate(_rows(part, _ANNOUNCING), 1):
            yield _line(number, row)


def _line(number: int, row: Sequence[Any]) -> Line | BrokenLine:
    event_id, version, outlier, rejected, metadata, ordering, json = row
    if json is None:
        return BrokenLine(number, "no-json", f"{event_id} has no row in event_json", b"")
    content = json.encode() if isinstance(json, str) else bytes(json)
    try:
        soft_failed = _METADATA.decode(metadata or "{}").soft_failed
    except (msgspec.MsgspecError, UnicodeError) as error:
        return BrokenLine(number, "not-json", f"internal_metadata of {event_id}: {error}", content)
    told = {
        "event_id": event_id,
        "room_version": version,
        "outlier": bool(outlier),
        "rejected_reason": rejected,
        "soft_failed": soft_failed,
        "stream_ordering": ordering,
    }
    return Line(number, content, told)


def _rows(part: Part, more: str = "") -> Iterator[Sequence[Any]]:
    sql = _ROWS.format(json=_JSON[part.form], place=_PLACE[part.form], more=more)
    with _opened(part.form, part.path, part.snapshot) as connection:
        cursor = connection.cursor("rows") if part.form is Form.POSTGRESQL else connection.cursor()
        with closing(cursor):
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
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, timeout=_CONNECT_SECONDS)


def _all(connection: Any, sql: str) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
