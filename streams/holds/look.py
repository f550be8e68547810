"""Looks at held streams (pure): what was given out, and the lowest bounds of open appends.

A look is a statement of its own on the primary, at READ COMMITTED. Every *later* statement sees all rows up to the position
that was looked up, for ever: ``streams.reading.rows.rows_between`` reads them, with this position as ``upto``. One statement
that looks and reads would use a snapshot that is older than its look, and miss facts.

A position that was looked up is right for everything that lies in the same database, such as the cursor of a named reader,
because a crash takes both back. What leaves the database, or outlives a crash in memory, must come from a stored position
whose COMMIT was confirmed: a crash can take back IDs that were given out, and facts of ``synchronous_commit = off``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.core.sequences import is_altered_sql, is_locked_sql
from streams.core.tokens import VectorToken
from streams.holds.installed_sql import ANY_WRITER, class_of

__all__ = [
    "LOOK_WHERE_POSSIBLE",
    "YOUNG_SECONDS",
    "Holder",
    "Seen",
    "each_once",
    "holders",
    "keepers",
    "locked_streams",
    "look",
    "seen_of",
]

#: An append that is open for less is assumed to be working normally.
YOUNG_SECONDS = 1.0

_LOOK = 'SELECT stream, given, "position", classes, bounds FROM streams_look(%s)'
#: The same, without streams that have no holds, and without a row where a look is impossible: then ``held`` has none, so the
#: function is not called.
LOOK_WHERE_POSSIBLE = """
SELECT seen.stream, seen.given, seen."position", seen.classes, seen.bounds
  FROM (SELECT array_agg(h.stream) AS names FROM streams_held h
         WHERE %(streams)s::text[] IS NULL OR h.stream = ANY (%(streams)s::text[])
        HAVING count(*) > 0 AND NOT pg_is_in_recovery()
           AND current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')) AS held
 CROSS JOIN LATERAL streams_look(held.names) AS seen
"""
_LOCKED = f"""
SELECT h.stream FROM streams_held h WHERE {is_altered_sql("h.sequence")} OR EXISTS (
    SELECT FROM pg_trigger g WHERE g.tgname = 'streams_guard_' || h.number AND {is_locked_sql("g.tgrelid")})
"""
_HOLDERS = """
SELECT stream, bound, pid, prepared, since, state, role, application, client, statement, class FROM streams_holders
WHERE %s::text[] IS NULL OR stream = ANY (%s) ORDER BY stream, bound, since
"""


#: Transactions that lock rows of stored positions for long. Nobody can raise such a row, which a looker passes over. A row is
#: theirs if its last locker is not older than they are: a savepoint that was released has a number that ``pg_locks`` lacks.
_KEEPERS = f"""
SELECT p.stream, min(abs(p.position)), a.pid, x.gid, coalesce(a.xact_start, x.prepared), a.state, coalesce(a.usename, x.owner),
       a.application_name, host(a.client_addr), a.query, {ANY_WRITER}, true
  FROM (SELECT DISTINCT pid, virtualtransaction FROM pg_locks
         WHERE locktype = 'relation' AND relation = 'streams_streamposition'::regclass AND granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND mode IN ('RowShareLock', 'RowExclusiveLock')) AS r
  JOIN pg_locks t ON t.virtualtransaction = r.virtualtransaction AND t.pid IS NOT DISTINCT FROM r.pid
        AND t.locktype = 'transactionid' AND t.granted AND t.mode = 'ExclusiveLock'
  JOIN streams_streamposition p ON p.xmax <> '0' AND age(p.xmax) <= age(t.transactionid)
  LEFT JOIN pg_stat_activity a ON a.pid = t.pid
  LEFT JOIN pg_prepared_xacts x ON t.pid IS NULL AND x.transaction = t.transactionid
 WHERE (%s::text[] IS NULL OR p.stream = ANY (%s))
   AND coalesce(a.xact_start, x.prepared, '-infinity') < clock_timestamp() - make_interval(secs => {YOUNG_SECONDS})
 GROUP BY p.stream, 3, 4, 5, 6, 7, 8, 9, 10
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream at one look. Numbers are positive, also for backward streams.

    ``given`` is the last ID that the sequence gave out. ``position`` is the linear position: all facts up to it are complete.
    ``open`` has the lowest bound of each class of writers with open appends.
    """

    given: int
    position: int
    open: Mapping[int, int]

    def position_of(self, writer: str) -> int:
        """Returns the position of one writer. A writer without open appends stands at what was given out."""
        return min(self.given, *(self.open.get(group, self.given) for group in (class_of(writer), ANY_WRITER)))

    def positions_of(self, writers: Iterable[str]) -> dict[str, int]:
        """Returns the positions of the writers that the caller knows, none of them above ``position_of_others``.

        So the lowest of them is the linear position, however many writers there are that the caller does not know.
        """
        # Otherwise: X, whom nobody knows yet, has an open append above 5. A and B have none, and would stand at 10. A reader
        # that has both at 10 then takes X, who appears with fact 6, for a writer that it has read up to 10.
        known = list(writers)
        least = self.position_of_others(known)
        return {writer: min(self.position_of(writer), least) for writer in known}

    def position_of_others(self, known: Iterable[str]) -> int:
        """Returns the position up to which the facts of all writers that are not in ``known`` are complete."""
        classes = {class_of(writer) for writer in known}
        return min([self.given, *(bound for group, bound in self.open.items() if group not in classes)])

    def token(self, writers: Iterable[str]) -> VectorToken:
        """Returns the place in the stream up to which facts are complete: the linear position, and the writers ahead of it."""
        return VectorToken.of(self.position, {writer: self.position_of(writer) for writer in writers})


def look(cursor: Any, streams: Sequence[str] | None = None) -> dict[str, Seen]:
    """Looks at these streams, or at all that have holds, in one statement. Returns ``{stream: what was seen}``.

    Raises the driver's error on a standby, in a transaction above READ COMMITTED, and for a stream without holds.
    """
    cursor.execute(_LOOK, [None if streams is None else list(streams)])
    return {stream: seen_of(*row) for stream, *row in cursor.fetchall()}


def locked_streams(cursor: Any) -> set[str]:
    """Returns the streams whose sequence or tables cannot be read, because somebody alters or locks them. Does not wait."""
    cursor.execute(_LOCKED)
    return {stream for (stream,) in cursor.fetchall()}


def seen_of(given: int, position: int, classes: Sequence[int], bounds: Sequence[int]) -> Seen:
    """Returns one stream's row of a look."""
    return Seen(given, position, dict(zip(classes, bounds, strict=True)))


@dataclass(frozen=True, slots=True)
class Holder:
    """An open append that holds a stream back at ``bound``: a session with its process ``pid``, or a prepared transaction.

    All fields but ``stream`` and ``bound`` are of the moment of the question. They are None if they do not exist for such a
    holder, or if the role may not see them.
    """

    stream: str
    bound: int
    pid: int | None
    prepared: str | None
    """The name of the prepared transaction. It has no process, and is ended by ROLLBACK PREPARED or COMMIT PREPARED."""
    since: datetime | None
    state: str | None
    role: str | None
    application: str | None
    client: str | None
    statement: str | None
    writer_class: int
    keeps_rows: bool = False
    """True if it holds the stream back by a lock on rows of stored positions, and not by an append."""

    def __str__(self) -> str:
        since = f", open since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        if self.prepared is not None:
            return f"prepared transaction {self.prepared!r} of role {self.role}{since}"
        if self.pid is None:
            return f"a session that is ending{since}"
        named = f" {self.application!r}" if self.application else ""
        return (
            f"database session {self.pid}{named} of role {self.role} from {self.client or 'local'}, {self.state}{since}"
        )


def holders(cursor: Any, streams: Sequence[str] | None = None) -> list[Holder]:
    """Returns who holds these streams, or all, back now. For each stream, the holder with the lowest bound comes first."""
    cursor.execute(_HOLDERS, [None if streams is None else list(streams)] * 2)
    return [Holder(*row) for row in cursor.fetchall()]


def keepers(cursor: Any, streams: Sequence[str] | None = None) -> list[Holder]:
    """Returns who has locked rows of these streams' stored positions, or of all, for longer than ``YOUNG_SECONDS``."""
    cursor.execute(_KEEPERS, [None if streams is None else list(streams)] * 2)
    return [Holder(*row) for row in cursor.fetchall()]


def each_once(found: Iterable[Holder]) -> list[Holder]:
    """Returns the first entry of each session and prepared transaction on a stream. They have one for each class of writers."""
    kept: dict[tuple[str, int | str | None], Holder] = {}
    for holder in found:
        kept.setdefault((holder.stream, holder.pid if holder.prepared is None else holder.prepared), holder)
    return list(kept.values())
