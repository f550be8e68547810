"""Removes a named reader that is no longer needed: its cursors, and its row in the table of readers; or ends a record.

A reader cannot be removed while it runs, or while it has dead letters. If a reader with the name of a removed reader is
started, it has no stored cursors and begins like a new reader.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from shlex import quote
from typing import Any

from streams.conf import stream_settings
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder
from streams.errors import FactsParked, ReaderNameTaken, UnknownReader
from streams.follow.handlers import effects_database_of, streams_database_of
from streams.follow.lease import hold_name, reader_row_key
from streams.follow.part_cursors import remove_parts
from streams.follow.stored_cursors import forget_cursors, known_streams
from streams.reading.reader_table import QUERY, remove_reader
from streams.runtime.logs import get_logger

log = get_logger(__name__)
_PARKED = "SELECT count(*) FROM streams_parkedfact WHERE reader = %s AND (%s::text IS NULL OR stream = %s)"
#: A query stores its row once a second while it asks for new facts, and not while a micro-batch runs.
_QUERY = "SELECT heartbeat_at < now() - make_interval(secs => %(silence)s) FROM streams_reader WHERE key = %(key)s"
_SHOWN = "SELECT count(*) FROM streams_reader WHERE key = %s"
_RECORDS = "SELECT count(*) FROM streams_recordedserver WHERE name = %s"
#: What was recorded stays. The record is listed like one whose recorder was ended: as a note, for a day.
_END_RECORD = "UPDATE streams_recordedserver SET ended_at = coalesce(ended_at, heartbeat_at) WHERE name = %s"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A deleted cursor: its stream, and the position up to which the reader had handled all facts of all writers (``base``)."""

    stream: str
    base: int


def forget_reader(reader: str, stream: str | None = None, by: str = "") -> list[Forgotten]:
    """Deletes the reader's cursors, or only its cursor on ``stream``. Returns the deleted cursors.

    Pass ``stream`` if the reader no longer follows this stream but still follows others. ``by`` is logged as the user
    who asked for the removal.

    A Spark query has no cursors here; only its row is deleted. The record of a foreign server (``follow --record``,
    ``mirror``) keeps all that it has, and counts as ended.

    Raises ``UnknownReader``, ``ReaderNameTaken`` while the reader runs, and ``FactsParked`` if the reader has dead
    letters.
    """
    name = "replsite forget"
    with (
        closing(driver.direct_connection(effects_database_of(reader), application_name=name)) as held,
        closing(driver.direct_connection(streams_database_of(reader), application_name=name)) as shown,
    ):
        cursor, row = held.cursor(), shown.cursor()
        if stream is None and not known_streams(cursor, reader) and _forget_query(row, reader):
            log.warning("reader.forgotten", reader=reader, by=by)
            return []
        if stream is None and not known_streams(cursor, reader) and _end_record(row, reader):
            log.warning("record.forgotten", record=reader, by=by)
            return []
        _check_known(cursor, row, reader, stream)
        hold_name(cursor, reader)  # until the connection closes, so the reader cannot start meanwhile
        with driver.in_transaction(cursor):
            cursor.execute(_PARKED, [reader, stream, stream])
            if parked := cursor.fetchone()[0]:
                raise FactsParked(
                    f"{parked} facts of reader {reader!r} are parked. Retry them (manage.py parked retry {quote(reader)}) or "
                    f"give them up (manage.py parked drop {quote(reader)} --all), then forget it."
                )
            deleted = forget_cursors(cursor, reader, stream)
            remove_parts(cursor, reader, stream)
            is_all = not known_streams(cursor, reader)
        if is_all:
            remove_reader(row, reader_row_key(reader))
    for of_stream, base in deleted.items():
        log.warning("reader.forgotten", reader=reader, stream=of_stream, was=base, by=by)
    return [Forgotten(of_stream, base) for of_stream, base in sorted(deleted.items())]


def _forget_query(row: Any, name: str) -> bool:
    key, silence = f"{QUERY}{name}", 3 * stream_settings().heartbeat_seconds
    row.execute(_QUERY, {"key": key, "silence": silence})
    if not (found := row.fetchone()):
        return False
    if not found[0]:
        raise ReaderNameTaken(
            f"The Spark query {name!r} runs: it was heard of within {silence:g} s. End it, then forget it."
        )
    remove_reader(row, key)
    return True


def _end_record(row: Any, name: str) -> bool:
    row.execute(_RECORDS, [name])
    if not row.fetchone()[0]:
        return False
    key = driver.recorder_key(row, name)
    row.execute("SELECT pg_try_advisory_lock(%s)", [key])  # until the connection closes
    if not row.fetchone()[0]:
        raise ReaderNameTaken(f"{name!r} is recorded by a process{describe_lock_holder(row, key)}: end it first.")
    row.execute(_END_RECORD, [name])
    return True


def _check_known(cursor: Any, row: Any, reader: str, stream: str | None) -> None:
    streams = known_streams(cursor, reader)
    row.execute(_SHOWN, [reader_row_key(reader)])
    if not streams and (stream is not None or not row.fetchone()[0]):
        raise UnknownReader(f"There is no reader {reader!r} with a stored cursor. manage.py streams lists them.")
    if stream is not None and stream not in streams:
        raise UnknownReader(f"Reader {reader!r} has no cursor of {stream!r}, but of {', '.join(streams)}.")
