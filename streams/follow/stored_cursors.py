"""Reads, creates and moves the stored cursors of named readers, and stores requests to retry dead letters in their rows.

Each function gets a DB-API cursor as ``cursor``, and runs in the caller's transaction. A process may move a stored
cursor on two conditions. The process holds the reader's lease, and the stored cursor is at the position that the
process knows. Otherwise the move changes nothing and raises an error. Then the process has lost the reader's name, or
it does not know that its last transaction was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from streams.core.tokens import VectorToken
from streams.errors import ReaderFenced

_COLUMNS = "base, entries::text, epoch"
_READ = f"SELECT {_COLUMNS} FROM streams_storedcursor WHERE reader = %(reader)s AND stream = %(stream)s"
#: The update changes nothing. It is needed because RETURNING yields no row after DO NOTHING.
_CREATE = f"""
INSERT INTO streams_storedcursor (reader, stream, base, entries, epoch, lease, host, process_id)
VALUES (%(reader)s, %(stream)s, %(base)s, %(entries)s::jsonb, %(epoch)s, %(lease)s, %(host)s, %(process_id)s)
ON CONFLICT (reader, stream) DO UPDATE SET epoch = streams_storedcursor.epoch
RETURNING {_COLUMNS}
"""
#: The condition on the lease: A holds lease 3 and is paused, B takes lease 4, and A's late update changes nothing. The condition
#: on the old value: a process repeats a transaction that was committed after all, and the update changes nothing.
#: The condition on the lock: a session looks, and the server crashes, which takes back what it saw. A pooler gives the handler's
#: connection another session. That would move the cursor beyond IDs that are given out again.
_MOVE = """
UPDATE streams_storedcursor SET base = %(base)s, entries = %(entries)s::jsonb, moved_at = clock_timestamp(),
    seen_at = clock_timestamp(), facts_handled = facts_handled + %(handled)s, facts_parked = facts_parked + %(parked)s,
    error = ''
WHERE reader = %(reader)s AND stream = %(stream)s AND lease = %(lease)s
  AND base = %(was_base)s AND entries = %(was_entries)s::jsonb
  AND (%(session_lock)s::bigint IS NULL OR NOT pg_try_advisory_xact_lock(%(session_lock)s::bigint))
"""
#: While any session holds an old snapshot, such as a backup for an hour, no version of the row can be removed, and who looks for
#: the row by its names goes through all of them. So a reader goes to the version that it has stored itself.
_MOVE_AT = f"{_MOVE} AND ctid = %(place)s::tid RETURNING ctid::text"
_MOVE += "RETURNING ctid::text"
_LEASE = "SELECT lease FROM streams_storedcursor WHERE reader = %(reader)s AND stream = %(stream)s"
#: Yields the time and the tokens of a request that waits. The time is null if a process has already begun the request.
_WAITING = "CASE WHEN retry_began_at IS NULL THEN retry_asked_at END, retry_tokens::text"
#: Gives all cursors of the reader the same lease, which is above their present leases, so that no earlier owner can move
#: them. A retry that the last process began and did not end is not begun again, because the dead letter may have killed
#: that process.
_NEW_LEASE = f"""
UPDATE streams_storedcursor SET lease = (SELECT max(lease) + 1 FROM streams_storedcursor WHERE reader = %(reader)s),
    host = %(host)s, process_id = %(process_id)s, seen_at = clock_timestamp(), ended_at = NULL,
    retry_result = CASE WHEN retry_began_at IS NOT NULL AND retry_result = ''
                        THEN 'the process ended before it was done' ELSE retry_result END
WHERE reader = %(reader)s RETURNING lease, stream, {_WAITING}
"""
#: For processes that share a reader. Parts are taken by locks, so nobody has to be fenced.
_JOIN_LEASE = f"""
UPDATE streams_storedcursor SET host = %(host)s, process_id = %(process_id)s, seen_at = clock_timestamp(), ended_at = NULL
WHERE reader = %(reader)s RETURNING lease, stream, {_WAITING}
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
#: Not of a row that is locked: its handler is at work, and moves it soon.
_SEEN = f"""
UPDATE streams_storedcursor SET seen_at = clock_timestamp(), ended_at = NULL WHERE id IN (
    SELECT id FROM streams_storedcursor WHERE reader = %(reader)s AND lease = %(lease)s FOR NO KEY UPDATE SKIP LOCKED)
RETURNING stream, {_WAITING}
"""
_LOCK = "SELECT FROM streams_storedcursor WHERE reader = %(reader)s AND stream = %(stream)s FOR NO KEY UPDATE"
#: A request for some dead letters is added to the tokens of a request that still waits.
_ASK_RETRY = """
UPDATE streams_storedcursor c SET retry_asked_by = %(by)s, retry_asked_at = clock_timestamp(), retry_began_at = NULL,
    retry_result = '', retry_tokens = CASE
        WHEN %(tokens)s::jsonb IS NULL THEN NULL
        WHEN retry_asked_at IS NULL OR retry_began_at IS NOT NULL THEN %(tokens)s::jsonb
        ELSE retry_tokens || %(tokens)s::jsonb END
WHERE reader = %(reader)s AND (%(stream)s::text IS NULL OR stream = %(stream)s)
  AND EXISTS (SELECT FROM streams_parkedfact p WHERE p.reader = c.reader AND p.stream = c.stream)
RETURNING stream
"""
#: The conditions: the process still runs the reader, and this request was not replaced by a later one.
_OF_REQUEST = "reader = %(reader)s AND lease = %(lease)s AND stream = %(stream)s AND retry_asked_at = %(asked_at)s"
_BEGIN_RETRY = f"""
UPDATE streams_storedcursor SET retry_began_at = clock_timestamp() WHERE {_OF_REQUEST} AND retry_began_at IS NULL
"""
_END_RETRY = f"""
UPDATE streams_storedcursor SET retry_began_at = coalesce(retry_began_at, clock_timestamp()), retry_result = %(result)s
WHERE {_OF_REQUEST}
"""
_PUT_BACK_RETRY = f"UPDATE streams_storedcursor SET retry_began_at = NULL WHERE {_OF_REQUEST}"
_STREAMS = "SELECT stream FROM streams_storedcursor WHERE reader = %(reader)s ORDER BY stream"
_EPOCH = "UPDATE streams_storedcursor SET epoch = %(epoch)s WHERE reader = %(reader)s AND stream = %(stream)s"


class CursorMoved(Exception):
    """The error if the stored cursor is not at the position that this process knows.

    There are three causes. An earlier transaction of this process was committed although its connection broke, an
    operator set the cursor, or the session has ended that looked up to where facts are complete.
    """


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a reader, and the lease under which the process runs it."""

    reader: str
    lease: int
    host: str
    process_id: int


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """A request of an operator to retry dead letters of a reader on a stream."""

    stream: str
    asked_at: datetime
    tokens: tuple[int, ...] | None
    """The tokens of the dead letters. None: all dead letters on the stream."""


def read_cursor(cursor: Any, reader: str, stream: str) -> tuple[VectorToken, str] | None:
    """Returns (token, epoch) of the reader's stored cursor on the stream, or None if there is no such cursor."""
    cursor.execute(_READ, {"reader": reader, "stream": stream})
    row = cursor.fetchone()
    return None if row is None else _parsed(row)


def begin_cursor(cursor: Any, owner: Owner, stream: str, token: VectorToken, epoch: str) -> tuple[VectorToken, str]:
    """Stores a reader's first cursor on a stream. Keeps a cursor that exists. Returns (token, epoch) of the stored cursor."""
    cursor.execute(
        _CREATE,
        {
            "reader": owner.reader, "stream": stream, "base": token.base, "entries": _text(token.entries), "epoch": epoch,
            "lease": owner.lease, "host": owner.host, "process_id": owner.process_id,
        },
    )  # fmt: skip
    return _parsed(cursor.fetchone())


def move_cursor(
    cursor: Any,
    owner: Owner,
    stream: str,
    way: tuple[VectorToken, VectorToken],
    counts: tuple[int, int] = (0, 0),
    hold: tuple[int | None, str] = (None, ""),
) -> str:
    """Moves the stored cursor of a reader on a stream. ``way`` is a pair of tokens (from, to).

    ``counts`` is a pair (handled, parked): numbers of facts that are added to the cursor's counters. ``hold`` is a pair
    (session lock, place): the key of a lock of the session that looked, or None if the token is that of stored positions, and
    the row's place in its table that the last committed move returned. Returns the new place. Raises ``ReaderFenced`` if this
    process no longer holds the lease, and ``CursorMoved`` if the cursor is not at ``from``, or that session has ended.
    """
    (was, token), (session_lock, place) = way, hold
    given = {
        "reader": owner.reader, "stream": stream, "lease": owner.lease, "base": token.base, "entries": _text(token.entries),
        "was_base": was.base, "was_entries": _text(was.entries), "handled": counts[0], "parked": counts[1],
        "session_lock": session_lock, "place": place,
    }  # fmt: skip
    for statement in (_MOVE_AT, _MOVE) if place else (_MOVE,):  # a heartbeat may have stored a later version
        cursor.execute(statement, given)
        if (row := cursor.fetchone()) is not None:
            return str(row[0])
    cursor.execute(_LEASE, {"reader": owner.reader, "stream": stream})
    row = cursor.fetchone()
    if row is None or row[0] != owner.lease:
        raise ReaderFenced(
            f"This process no longer runs reader {owner.reader!r} (lease {owner.lease}, now {row[0] if row else 'none'}): "
            f"another one took it over, or its cursor was removed. Nothing was stored."
        )
    raise CursorMoved


def lock_cursor(cursor: Any, reader: str, stream: str) -> None:
    """Keeps all others from changing the stored cursor until the transaction ends."""
    cursor.execute(_LOCK, {"reader": reader, "stream": stream})


def new_lease(
    cursor: Any, reader: str, host: str, process_id: int, *, shared: bool = False
) -> tuple[Owner, dict[str, RetryRequest]]:
    """Begins a new lease for all cursors of the reader. Returns (owner, ``{stream: waiting retry request}``).

    Waits for open transactions in which an earlier owner moves the cursors. A reader without cursors gets lease 1. If
    ``shared`` is true, joins the processes that have the present lease.
    """
    cursor.execute(_JOIN_LEASE if shared else _NEW_LEASE, {"reader": reader, "host": host, "process_id": process_id})
    rows = cursor.fetchall()
    return Owner(reader, rows[0][0] if rows else 1, host, process_id), _requests(row[1:] for row in rows)


def store_heartbeat(cursor: Any, owner: Owner) -> dict[str, RetryRequest]:
    """Stores a heartbeat of the reader's process in all cursors of the reader.

    Returns the waiting retry requests as ``{stream: request}``.
    """
    cursor.execute(_SEEN, {"reader": owner.reader, "lease": owner.lease})
    return _requests(cursor.fetchall())


def ask_retry(cursor: Any, reader: str, stream: str | None, tokens: Sequence[int] | None, by: str) -> list[str]:
    """Stores a request to retry dead letters in the cursors of their streams. Returns the names of these streams.

    If a cursor has an earlier request whose retry has not begun, a request for some tokens is added to it. In all
    other cases the new request replaces the earlier request. Without ``tokens`` it is for all dead letters.
    """
    wanted = None if tokens is None else orjson.dumps(list(tokens)).decode()
    cursor.execute(_ASK_RETRY, {"reader": reader, "stream": stream, "tokens": wanted, "by": by})
    return sorted(row[0] for row in cursor.fetchall())


def begin_retry(cursor: Any, owner: Owner, request: RetryRequest) -> bool:
    """Stores that the retry begins. Returns false if it has begun before, or if a later request has replaced ``request``."""
    cursor.execute(_BEGIN_RETRY, _of_request(owner, request))
    return bool(cursor.rowcount)


def end_retry(cursor: Any, owner: Owner, request: RetryRequest, result: str) -> None:
    """Stores the result of a retry. Does nothing if a later request has replaced ``request``."""
    cursor.execute(_END_RETRY, {**_of_request(owner, request), "result": result})


def put_back_retry(cursor: Any, owner: Owner, request: RetryRequest) -> None:
    """Marks a retry that has begun as not begun, so that the next process of the reader begins this retry again."""
    cursor.execute(_PUT_BACK_RETRY, _of_request(owner, request))


def end_lease(cursor: Any, owner: Owner, errors: Mapping[str, str]) -> None:
    """Stores that the process ``owner`` no longer runs the reader. Does nothing if another process has a newer lease.

    ``errors`` is ``{stream: error}`` for the streams on which an error ended the reader.
    """
    given = {"reader": owner.reader, "lease": owner.lease, "errors": orjson.dumps(dict(errors)).decode()}
    cursor.execute(_END, given)


def forget_cursors(cursor: Any, reader: str, stream: str | None = None) -> dict[str, int]:
    """Deletes the reader's cursors, or only its cursor on ``stream``. Returns the deleted cursors as ``{stream: base}``."""
    cursor.execute(_FORGET, {"reader": reader, "stream": stream})
    return dict(cursor.fetchall())


def adopt_epoch(cursor: Any, reader: str, stream: str, epoch: str) -> None:
    """Sets the epoch of a cursor that was restored from a backup together with the facts of its stream."""
    cursor.execute(_EPOCH, {"reader": reader, "stream": stream, "epoch": epoch})


def known_streams(cursor: Any, reader: str) -> list[str]:
    cursor.execute(_STREAMS, {"reader": reader})
    return [row[0] for row in cursor.fetchall()]


def _of_request(owner: Owner, request: RetryRequest) -> dict[str, Any]:
    return {"reader": owner.reader, "lease": owner.lease, "stream": request.stream, "asked_at": request.asked_at}


def _requests(rows: Iterable[Any]) -> dict[str, RetryRequest]:
    return {
        stream: RetryRequest(stream, asked_at, None if tokens is None else tuple(orjson.loads(tokens)))
        for stream, asked_at, tokens in rows
        if asked_at is not None
    }


def _text(entries: Mapping[str, int]) -> str:
    return orjson.dumps(dict(entries)).decode()


def _parsed(row: Any) -> tuple[VectorToken, str]:
    return VectorToken(row[0], orjson.loads(row[1])), row[2]
