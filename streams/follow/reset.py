"""Sets a reader's cursors to given tokens or to the present positions, and stores a record of the change.

If a cursor moves forward, the facts between its old and its new token are skipped. If the cursor moves back, these
facts are handled a second time. The operator must know whether this is right. Cursors cannot be set while the reader
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson

from streams import registry
from streams.core.tokens import VectorToken
from streams.core.watermarks import lost_facts, trim_mark
from streams.db import driver
from streams.epochs import current_epoch
from streams.errors import TokenError, UnknownReader
from streams.follow.handlers import effects_database_of, handlers_of, readers, streams_database_of
from streams.follow.lease import hold_name
from streams.follow.part_cursors import remove_parts
from streams.follow.stored_cursors import known_streams, read_cursor
from streams.follow.table_source import present_token
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


@dataclass(frozen=True, slots=True)
class Resynced:
    """A cursor that was set. ``was`` is the cursor's former token, or None if there was no cursor. ``now`` is its new token."""

    stream: str
    was: VectorToken | None
    now: VectorToken


def resync_reader(reader: str, tokens: Mapping[str, VectorToken] | None = None, by: str = "") -> list[Resynced]:
    """Sets the reader's cursors to ``tokens``, a token for each stream.

    Without ``tokens``, sets the cursors of all streams of the reader to the present positions. After an error no cursor
    is changed. ``by`` is stored as the user who asked for the change.

    Raises ``UnknownReader``, ``ReaderNameTaken`` while the reader runs, and ``TokenError`` for a token beyond the present
    positions or below the low-water mark.
    """
    name, using = "replsite resync", streams_database_of(reader)
    with (
        closing(driver.direct_connection(effects_database_of(reader), application_name=name)) as held,
        closing(driver.direct_connection(using, application_name=name)) as asked,
    ):
        cursor, streams_cursor = held.cursor(), asked.cursor()
        streams = _streams(cursor, reader)
        wanted = dict(tokens) if tokens else dict.fromkeys(streams)
        for stream in wanted:
            registry.get(stream)
            if stream not in streams:
                raise UnknownReader(f"Reader {reader!r} does not follow {stream!r}, but {', '.join(streams)}.")
        hold_name(cursor, reader)  # until the connection closes, so the reader cannot start meanwhile
        shared = {handler.stream for handler in (handlers_of(reader) if reader in readers() else ()) if handler.by}
        epoch = current_epoch(streams_cursor)
        done = []
        with driver.in_transaction(cursor):
            for stream, token in wanted.items():
                kept = read_cursor(cursor, reader, stream)
                goal = _goal(streams_cursor, reader, stream, token)
                # Parts begin anew at the reader's cursor, which is one position then.
                if remove_parts(cursor, reader, stream) or stream in shared:
                    goal = VectorToken(goal.base)
                done.append(Resynced(stream, None if kept is None else kept[0], goal))
            for new in done:
                _store(cursor, reader, new, (epoch, by))
    for new in done:
        log.warning("reader.resynced", reader=reader, stream=new.stream, was=str(new.was), now=str(new.now), by=by)
    return done


def _streams(cursor: Any, reader: str) -> list[str]:
    declared = [handler.stream for handler in handlers_of(reader)] if reader in readers() else []
    found = sorted({*known_streams(cursor, reader), *declared})
    if not found:
        raise UnknownReader(
            f"There is no reader {reader!r}: no handler names it and it has no stored cursor. See manage.py streams; a "
            f"follower of the command line is set with --from, a Spark query with startingOffsets and a new checkpoint."
        )
    return found


def _goal(cursor: Any, reader: str, stream: str, token: VectorToken | None) -> VectorToken:
    """Returns the token to which to set a cursor: ``token``, or the stream's present position if ``token`` is None.

    Raises ``TokenError`` if ``token`` lies beyond the present position, or if facts after ``token`` were trimmed.
    """
    present = present_token(cursor, stream)
    wanted = present if token is None else token
    if not wanted.before_or_equal(present):
        raise TokenError(
            f"Reader {reader!r} cannot be set to {wanted.base} on stream {stream!r}: that lies beyond the present position "
            f"{present.base}, and facts up to it would be passed over as they come. Give a token up to {present.base}."
        )
    mark = trim_mark(cursor, stream)
    if lost := lost_facts(mark, wanted):
        raise TokenError(
            f"Reader {reader!r} cannot be set to {wanted.base} on stream {stream!r}: facts up to {max(lost.values())} were "
            f"trimmed. Give a token of at least {max(lost.values())}."
        )
    return wanted


def _store(cursor: Any, reader: str, new: Resynced, epoch_and_by: tuple[str, str]) -> None:
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
