"""Sets a reader's cursors to given tokens, to a time or to the present positions, and stores a record of the change.

If a cursor moves forward, the facts between its old and its new token are skipped. If the cursor moves back, these
facts are handled a second time. The operator must know whether this is right. Cursors cannot be set while the reader
runs.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import orjson

from streams.core.tokens import VectorToken
from streams.db import driver
from streams.epochs import current_epoch
from streams.follow.handlers import effects_database_of, streams_database_of
from streams.follow.lease import hold_name
from streams.follow.part_cursors import remove_parts
from streams.follow.resync_plan import CursorMove, Goal, check_known, planned_moves
from streams.runtime.logs import get_logger

log = get_logger(__name__)

#: Raises the lease, so that a process which has lost its lock but has not noticed the loss cannot move the cursor.
_SET = """
INSERT INTO streams_storedcursor (reader, stream, base, entries, epoch, ended_at)
VALUES (%(reader)s, %(stream)s, %(base)s, %(entries)s::jsonb, %(epoch)s, clock_timestamp())
ON CONFLICT (reader, stream) DO UPDATE SET base = excluded.base, entries = excluded.entries, epoch = excluded.epoch,
    lease = streams_storedcursor.lease + 1, moved_at = clock_timestamp(), seen_at = clock_timestamp(),
    ended_at = clock_timestamp(), error = ''
"""
_TRACE = """
INSERT INTO streams_readerresync (reader, stream, from_base, from_entries, to_base, to_entries, resynced_by)
VALUES (%(reader)s, %(stream)s, %(from_base)s, %(from_entries)s::jsonb, %(base)s, %(entries)s::jsonb, %(by)s)
"""


def resync_reader(reader: str, goal: Goal = None, by: str = "") -> list[CursorMove]:
    """Sets the reader's cursors, and returns how each was moved. After an error no cursor is changed.

    ``goal`` maps streams to tokens. Or it is a time: then the facts of all of the reader's streams that were inserted
    since are handled again, and no cursor moves forward. Without it, sets the cursors of all streams to the present
    positions. ``by`` is stored as the user who asked for the change.

    Raises ``UnknownReader``, ``ReaderNameTaken`` while the reader runs, and ``TokenError`` for a token beyond the present
    positions or below the low-water mark, and for a time in the future.
    """
    name, using = "replsite resync", streams_database_of(reader)
    with (
        closing(driver.direct_connection(effects_database_of(reader), application_name=name)) as held,
        closing(driver.direct_connection(using, application_name=name)) as asked,
    ):
        cursor, streams_cursor = held.cursor(), asked.cursor()
        check_known(cursor, reader)
        hold_name(cursor, reader)  # until the connection closes, so the reader cannot start meanwhile
        epoch = current_epoch(streams_cursor)
        with driver.in_transaction(cursor):
            done = planned_moves(cursor, streams_cursor, reader, goal)
            for move in done:
                remove_parts(cursor, reader, move.stream)
                _store(cursor, reader, move, (epoch, by))
    for new in done:
        log.warning("reader.resynced", reader=reader, stream=new.stream, was=str(new.was), now=str(new.now), by=by)
    return done


def _store(cursor: Any, reader: str, new: CursorMove, epoch_and_by: tuple[str, str]) -> None:
    epoch, by = epoch_and_by
    was = new.was or VectorToken(0)
    given = {
        "reader": reader,
        "stream": new.stream,
        "base": new.now.base,
        "entries": orjson.dumps(dict(new.now.entries)).decode(),
        "from_base": None if new.was is None else was.base,
        "from_entries": orjson.dumps(dict(was.entries)).decode(),
        "epoch": epoch,
        "by": by,
    }
    cursor.execute(_SET, given)
    cursor.execute(_TRACE, given)
