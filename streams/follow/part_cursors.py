"""Reads, takes and moves the cursors of parts, by which several processes share a reader's stream.

Each function gets a DB-API cursor as ``cursor``, or Django's connection. A process takes parts in the transaction in which it
handles their facts, by row locks. If it dies, PostgreSQL ends its transaction, and the parts are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streams.db import driver
from streams.errors import BadHandler
from streams.follow.part_plan import PARTS, Part

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_OF = "reader = %(reader)s AND stream = %(stream)s"
_WAIT_SECONDS = "greatest(extract(epoch FROM retry_at - clock_timestamp()), 0)::float8"
_COLUMNS = f"part, position, apart_upto, attempts, {_WAIT_SECONDS}"
_ALL = f"SELECT {_COLUMNS} FROM streams_partcursor WHERE {_OF} AND by_field = %(by)s ORDER BY position"
#: A part that moved since the statement began is tested again as it is now, and returned as it is now.
_RESERVE = f"""
SELECT {_COLUMNS} FROM streams_partcursor
WHERE {_OF} AND by_field = %(by)s AND part = ANY(%(parts)s) AND coalesce(retry_at <= clock_timestamp(), true)
  AND (apart_upto IS NOT NULL) = %(apart)s
ORDER BY position LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
_MOVE = f"""
UPDATE streams_partcursor SET position = moved.to_position, attempts = 0, retry_at = NULL, moved_at = clock_timestamp(),
    apart_upto = CASE WHEN apart_upto > moved.to_position THEN apart_upto END,
    facts_handled = facts_handled + moved.handled, facts_parked = facts_parked + moved.parked
FROM unnest(%(parts)s::int[], %(positions)s::bigint[], %(handled)s::int[], %(parked)s::int[])
     AS moved (moved_part, to_position, handled, parked)
WHERE {_OF} AND part = moved.moved_part
"""
#: Parts that are as this process has seen them, without those that others have. Otherwise: an operator sets the cursors back,
#: and a process that does not know it yet passes a part over facts that it remembers as handled.
_FREE = f"""(
    SELECT id, upto FROM streams_partcursor
    JOIN unnest(%(parts)s::int[], %(positions)s::bigint[], %(upto)s::bigint[]) AS seen (seen_part, seen_at, upto)
        ON part = seen_part AND position = seen_at
    WHERE {_OF} AND by_field = %(by)s FOR UPDATE OF streams_partcursor SKIP LOCKED)"""
#: Only while the session lives that looked, as of ``stored_cursors``.
_PASS = f"""
UPDATE streams_partcursor SET position = free.upto FROM {_FREE} AS free WHERE streams_partcursor.id = free.id
  AND (%(session_lock)s::bigint IS NULL OR NOT pg_try_advisory_xact_lock(%(session_lock)s::bigint))
"""
_APART = f"""
UPDATE streams_partcursor SET apart_upto = greatest(apart_upto, free.upto)
FROM {_FREE} AS free WHERE streams_partcursor.id = free.id
"""
_FAILED = f"""
UPDATE streams_partcursor SET attempts = attempts + 1, retry_at = clock_timestamp() + make_interval(secs => %(pause)s),
    apart_upto = greatest(apart_upto, %(token)s)
WHERE id = (
    SELECT id FROM streams_partcursor
    WHERE {_OF} AND part = %(part)s AND position = %(position)s AND attempts = %(attempts)s FOR UPDATE SKIP LOCKED)
"""
#: The reader's cursor is the lowest of its parts', and never above it. If two processes meet here, the later one sees all.
_STORE = f"""
UPDATE streams_storedcursor SET base = parts.base, moved_at = clock_timestamp(), error = '',
    facts_handled = parts.handled, facts_parked = parts.parked
FROM (SELECT min(position) AS base, sum(facts_handled) AS handled, sum(facts_parked) AS parked
      FROM streams_partcursor WHERE {_OF} AND by_field = %(by)s) AS parts
WHERE {_OF} AND (streams_storedcursor.base < parts.base
                 OR streams_storedcursor.base = parts.base AND facts_handled < parts.handled)
"""
_LOCK = f"SELECT position, by_field FROM streams_partcursor WHERE {_OF} ORDER BY part FOR UPDATE"
_CREATE = f"""
INSERT INTO streams_partcursor (reader, stream, by_field, part, position, facts_handled, facts_parked)
SELECT reader, stream, %(by)s, part, base, CASE part WHEN 0 THEN facts_handled ELSE 0 END,
       CASE part WHEN 0 THEN facts_parked ELSE 0 END
FROM streams_storedcursor CROSS JOIN generate_series(0, {PARTS - 1}) AS part WHERE {_OF}
ON CONFLICT DO NOTHING
"""
_REMOVE = (
    "DELETE FROM streams_partcursor WHERE reader = %(reader)s AND (%(stream)s::text IS NULL OR stream = %(stream)s)"
)
_STOPPED = f"SELECT key FROM streams_parkedfact WHERE {_OF} AND part IS NOT NULL AND key = ANY(%(keys)s)"
_PROCESSES = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND classid::bigint = (%(key)s::bigint >> 32) & 4294967295 AND objid::bigint = %(key)s::bigint & 4294967295
"""


class PartCursors:
    """The cursors of the parts of one stream, for a reader that shares it by the field ``by``."""

    def __init__(self, reader: str, stream: str, by: str) -> None:
        self._of = {"reader": reader, "stream": stream, "by": by}

    def begin(self, cursor: Any, entries: Mapping[str, int], *, is_alone: bool) -> None:
        """Creates the cursors at the reader's cursor, if there are none. Call it in a transaction.

        ``entries`` are those of the reader's cursor. Raises ``BadHandler`` if facts above one position were handled by
        another rule: of some writers, or by another field. Also raises it if another process shares by another field now
        (``is_alone`` is false).
        """
        if self.all(cursor):
            return  # without their locks, for which one would wait until all handlers return
        cursor.execute(_LOCK, self._of)
        if rows := cursor.fetchall():
            if rows[0][1] == self._of["by"]:
                return  # of a process that began at the same time
            if not is_alone:
                raise BadHandler(
                    f"Other processes share reader {self._of['reader']!r} by={rows[0][1]!r}, and this one by={self._of['by']!r}. "
                    f"Stop them first."
                )
            self._unite(cursor, rows)
        elif entries:
            raise BadHandler(
                f"Reader {self._of['reader']!r} has handled facts of some writers of stream {self._of['stream']!r} ahead of "
                f"others, so by= cannot begin yet. Run it without by= until no transaction holds the stream back."
            )
        cursor.execute(_CREATE, self._of)

    def unite(self, cursor: Any) -> None:
        """Removes the cursors, as the handler has no ``by`` any more. Raises ``BadHandler`` if they differ."""
        cursor.execute(_LOCK, self._of)
        if rows := cursor.fetchall():
            self._unite(cursor, rows)

    def _unite(self, cursor: Any, rows: Sequence[tuple[int, str]]) -> None:
        if len({position for position, _ in rows}) > 1:
            raise BadHandler(
                f"Reader {self._of['reader']!r} shares stream {self._of['stream']!r} by={rows[0][1]!r}, and some keys are ahead "
                f"of others. To change that, let it catch up first, with by={rows[0][1]!r}: manage.py runhandlers "
                f"{self._of['reader']} --once."
            )
        cursor.execute(_STORE, {**self._of, "by": rows[0][1]})
        cursor.execute(_REMOVE, self._of)

    def all(self, cursor: Any) -> list[Part]:
        """Returns all parts, the one that is furthest behind first."""
        cursor.execute(_ALL, self._of)
        return [Part(*row) for row in cursor.fetchall()]

    def reserve(self, connection: BaseDatabaseWrapper, parts: Sequence[int], limit: int, *, apart: bool) -> list[Part]:
        """Locks at most ``limit`` of these parts until the transaction ends, without those that others have."""
        found = self._prepared(connection, _RESERVE, parts=list(parts), limit=limit, apart=apart)
        return [Part(*row) for row in found]

    def _prepared(self, connection: BaseDatabaseWrapper, statement: str, **values: Any) -> list[Any]:
        # What each transaction executes. To plan it would take the server longer than to execute it.
        return driver.send_together(connection, [driver.Statement(statement, {**self._of, **values})])

    def move(
        self,
        connection: BaseDatabaseWrapper,
        moves: Mapping[int, int],
        handled: Mapping[int, int],
        parked: Mapping[int, int],
    ) -> None:
        """Moves parts that this transaction has taken."""
        counts = {
            "handled": [handled.get(part, 0) for part in moves],
            "parked": [parked.get(part, 0) for part in moves],
        }
        self._prepared(connection, _MOVE, parts=list(moves), positions=list(moves.values()), **counts)

    def pass_empty(self, cursor: Any, parts: Iterable[Part], upto: int, session_lock: int | None) -> None:
        """Moves parts without facts up to ``upto``, unless others have them. ``session_lock`` is that of ``move_cursor``."""
        cursor.execute(_PASS, self._free([(part, upto) for part in parts]) | {"session_lock": session_lock})

    def store(self, cursor: Any) -> None:
        """Sets the reader's cursor to the lowest of its parts."""
        cursor.execute(_STORE, self._of)

    def handle_apart(self, cursor: Any, parts: Iterable[Part], upto: Mapping[int, int]) -> None:
        """Stores that the facts of these parts are handled one by one, up to the token in ``upto``."""
        cursor.execute(_APART, self._free([(part, upto[part.number]) for part in parts if part.number in upto]))

    def _free(self, ways: Sequence[tuple[Part, int]]) -> dict[str, Any]:
        numbers, positions = [part.number for part, _ in ways], [part.position for part, _ in ways]
        return {**self._of, "parts": numbers, "positions": positions, "upto": [upto for _, upto in ways]}

    def failed(self, cursor: Any, part: Part, token: int, pause_seconds: float) -> None:
        """Stores a failed attempt at the next fact of a part. The next attempt is due after the pause."""
        known = {"part": part.number, "position": part.position, "attempts": part.attempts}
        cursor.execute(_FAILED, {**self._of, **known, "token": token, "pause": pause_seconds})

    def stopped(self, connection: BaseDatabaseWrapper, keys: Iterable[str]) -> set[str]:
        """Returns those of these keys that have dead letters."""
        return {key for (key,) in self._prepared(connection, _STOPPED, keys=list(keys))}


def has_parts(cursor: Any, reader: str, stream: str) -> bool:
    """Returns true if processes share the stream by key, or did, so that there are cursors of parts."""
    cursor.execute(f"SELECT EXISTS (SELECT FROM streams_partcursor WHERE {_OF})", {"reader": reader, "stream": stream})
    return bool(cursor.fetchone()[0])


def remove_parts(cursor: Any, reader: str, stream: str | None = None) -> bool:
    """Deletes the cursors of parts of a reader, or only those of one stream. Returns true if there were any."""
    cursor.execute(_REMOVE, {"reader": reader, "stream": stream})
    return bool(cursor.rowcount)


def lock_part(cursor: Any, reader: str, stream: str, part: int) -> None:
    """Takes one part until the transaction ends. Waits until no other process has it."""
    # A change, as else a transaction that keeps one snapshot could take the part next and not see what this one does.
    cursor.execute(
        f"UPDATE streams_partcursor SET attempts = attempts WHERE {_OF} AND part = %(part)s",
        {"reader": reader, "stream": stream, "part": part},
    )


def processes(cursor: Any, key: int) -> int:
    """Returns the number of processes that hold the session lock ``key``."""
    cursor.execute(_PROCESSES, {"key": key})
    return int(cursor.fetchone()[0])
