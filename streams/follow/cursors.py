"""Reads, creates and moves the stored cursors of named readers.

The functions get a DB-API cursor (``cursor``), and run in the caller's transaction. Only the process that holds the
reader's lease may move a stored cursor, and only from the position that the process knows. Otherwise nothing is changed
and an error is raised: the process has lost the reader's name, or it does not know that its last transaction was committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from streams.core.tokens import VectorToken
from streams.errors import ReaderFenced

__all__ = [
    "CursorMoved",
    "Owner",
    "adopt_epoch",
    "begin_cursor",
    "end_lease",
    "forget_cursors",
    "known_streams",
    "move_cursor",
    "read_cursor",
    "sign_of_life",
    "take_lease",
]

_COLUMNS = "base, entries::text, epoch"
_READ = f"SELECT {_COLUMNS} FROM streams_storedcursor WHERE reader = %(reader)s AND stream = %(stream)s"
#: The update changes nothing. It is needed because RETURNING yields no row after DO NOTHING.
_BEGIN = f"""
INSERT INTO streams_storedcursor (reader, stream, base, entries, epoch, lease, host, process_id)
VALUES (%(reader)s, %(stream)s, %(base)s, %(entries)s::jsonb, %(epoch)s, %(lease)s, %(host)s, %(process_id)s)
ON CONFLICT (reader, stream) DO UPDATE SET epoch = streams_storedcursor.epoch
RETURNING {_COLUMNS}
"""
#: The condition on the lease: A holds lease 3 and is paused, B takes lease 4, and A's late update changes nothing. The condition
#: on the old value: a process repeats a transaction that was committed after all, and the update changes nothing.
_MOVE = """
UPDATE streams_storedcursor SET base = %(base)s, entries = %(entries)s::jsonb, moved_at = clock_timestamp(),
    seen_at = clock_timestamp(), facts_handled = facts_handled + %(handled)s, facts_parked = facts_parked + %(parked)s,
    error = ''
WHERE reader = %(reader)s AND stream = %(stream)s AND lease = %(lease)s
  AND base = %(was_base)s AND entries = %(was_entries)s::jsonb
"""
_LEASE = "SELECT lease FROM streams_storedcursor WHERE reader = %(reader)s AND stream = %(stream)s"
#: Gives all cursors of the reader the same lease, which is above their present leases, so that no earlier owner can move them.
_TAKE = """
UPDATE streams_storedcursor SET lease = (SELECT max(lease) + 1 FROM streams_storedcursor WHERE reader = %(reader)s),
    host = %(host)s, process_id = %(process_id)s, seen_at = clock_timestamp(), ended_at = NULL
WHERE reader = %(reader)s RETURNING lease
"""
#: A stored error stays until the cursor moves, so that a reader that is restarted and fails again never looks healthy.
_END = """
UPDATE streams_storedcursor SET ended_at = clock_timestamp(), seen_at = clock_timestamp(),
    error = coalesce(%(errors)s::jsonb ->> stream, error)
WHERE reader = %(reader)s AND lease = %(lease)s
"""
_FORGET = """
DELETE FROM streams_storedcursor WHERE reader = %(reader)s AND (%(stream)s::text IS NULL OR stream = %(stream)s)
RETURNING stream, base
"""
_SEEN = "UPDATE streams_storedcursor SET seen_at = clock_timestamp() WHERE reader = %(reader)s AND lease = %(lease)s"
_STREAMS = "SELECT stream FROM streams_storedcursor WHERE reader = %(reader)s ORDER BY stream"
_EPOCH = "UPDATE streams_storedcursor SET epoch = %(epoch)s WHERE reader = %(reader)s AND stream = %(stream)s"


class CursorMoved(Exception):
    """The error if the stored cursor is not at the position that this process knows.

    An earlier transaction was committed although its connection broke, or the cursor was set by hand.
    """


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a reader, and the lease under which the process runs it."""

    reader: str
    lease: int
    host: str
    process_id: int


def read_cursor(cursor: Any, reader: str, stream: str) -> tuple[VectorToken, str] | None:
    """Returns (token, epoch) of the reader's stored cursor on the stream, or None if there is none."""
    cursor.execute(_READ, {"reader": reader, "stream": stream})
    row = cursor.fetchone()
    return None if row is None else _parsed(row)


def begin_cursor(cursor: Any, owner: Owner, stream: str, token: VectorToken, epoch: str) -> tuple[VectorToken, str]:
    """Stores the first cursor of a reader on a stream, unless one exists. Returns (token, epoch) of the stored cursor."""
    cursor.execute(
        _BEGIN,
        {
            "reader": owner.reader, "stream": stream, "base": token.base, "entries": _text(token.entries), "epoch": epoch,
            "lease": owner.lease, "host": owner.host, "process_id": owner.process_id,
        },
    )  # fmt: skip
    return _parsed(cursor.fetchone())


def move_cursor(
    cursor: Any, owner: Owner, stream: str, way: tuple[VectorToken, VectorToken], counts: tuple[int, int] = (0, 0)
) -> None:
    """Moves the stored cursor. ``way`` is a pair of tokens (from, to).

    ``counts`` is a pair (handled, parked): numbers of facts that are added to the cursor's counters. Raises
    ``ReaderFenced`` if this process no longer holds the lease, and ``CursorMoved`` if the cursor is not at ``from``.
    """
    was, token = way
    given = {
        "reader": owner.reader, "stream": stream, "lease": owner.lease, "base": token.base, "entries": _text(token.entries),
        "was_base": was.base, "was_entries": _text(was.entries), "handled": counts[0], "parked": counts[1],
    }  # fmt: skip
    cursor.execute(_MOVE, given)
    if cursor.rowcount == 1:
        return
    cursor.execute(_LEASE, {"reader": owner.reader, "stream": stream})
    row = cursor.fetchone()
    if row is None or row[0] != owner.lease:
        raise ReaderFenced(
            f"This process no longer runs reader {owner.reader!r} (lease {owner.lease}, now {row[0] if row else 'none'}): "
            f"another one took it over, or its cursor was removed. Nothing was stored."
        )
    raise CursorMoved


def take_lease(cursor: Any, reader: str, host: str, process_id: int) -> Owner:
    """Begins a new lease for all cursors of the reader, and returns it with its owner.

    Waits for open transactions in which an earlier owner moves the cursors. A reader without cursors gets lease 1.
    """
    cursor.execute(_TAKE, {"reader": reader, "host": host, "process_id": process_id})
    rows = cursor.fetchall()
    return Owner(reader, rows[0][0] if rows else 1, host, process_id)


def sign_of_life(cursor: Any, owner: Owner) -> None:
    """Stores a heartbeat of the reader's process in all cursors of the reader."""
    cursor.execute(_SEEN, {"reader": owner.reader, "lease": owner.lease})


def end_lease(cursor: Any, owner: Owner, errors: Mapping[str, str]) -> None:
    """Stores that the process no longer runs the reader. Does nothing if another process has a newer lease.

    ``errors`` is ``{stream: error}`` for the streams on which an error ended the reader.
    """
    given = {"reader": owner.reader, "lease": owner.lease, "errors": orjson.dumps(dict(errors)).decode()}
    cursor.execute(_END, given)


def forget_cursors(cursor: Any, reader: str, stream: str | None = None) -> dict[str, int]:
    """Deletes the reader's cursors, or only its cursor on ``stream``. Returns ``{stream: base}`` of the deleted cursors."""
    cursor.execute(_FORGET, {"reader": reader, "stream": stream})
    return dict(cursor.fetchall())


def adopt_epoch(cursor: Any, reader: str, stream: str, epoch: str) -> None:
    """Sets the epoch of a cursor that was restored from a backup together with the facts of its stream."""
    cursor.execute(_EPOCH, {"reader": reader, "stream": stream, "epoch": epoch})


def known_streams(cursor: Any, reader: str) -> list[str]:
    """Returns the streams on which the reader has a stored cursor, sorted by name."""
    cursor.execute(_STREAMS, {"reader": reader})
    return [row[0] for row in cursor.fetchall()]


def _text(entries: Mapping[str, int]) -> str:
    return orjson.dumps(dict(entries)).decode()


def _parsed(row: Any) -> tuple[VectorToken, str]:
    return VectorToken(row[0], orjson.loads(row[1])), row[2]
