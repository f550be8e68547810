"""Stores the positions of looks, for everything that is not in the same database, or that outlives a crash of the server.

A look (``streams.holds.look``) sees what was given out, and who is open. A crash can take back what a look saw: IDs that
were given out, and facts of ``synchronous_commit = off``. A confirmed COMMIT of the row of a position makes all of that
lasting, because WAL is one order. So a position goes outside only after ``PositionStore.store`` has returned.

Each writer of a stream has a row. Names of writers are learned from facts: a writer's first fact brings its row, in the
transaction that raises the positions of all others to this fact. Until then ``Seen.positions_of`` holds all others below it.

Rows only rise, except that a stream in memory begins anew. So any number of processes may store at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from streams.core.positions import RETIRED
from streams.core.sequences import last_values
from streams.db import driver
from streams.db.sequences import move_forward
from streams.errors import SequenceBusy
from streams.holds.look import Seen, locked_streams, look
from streams.holds.weaknesses import SET_BACK
from streams.runtime.amounts import counted
from streams.runtime.logs import Condition, get_logger

__all__ = ["LOCK_SECONDS", "SESSION", "STANDS_STILL_SECONDS", "PositionStore", "Unconfirmed"]

log = get_logger(__name__)
#: Longest wait for a lock. It is shorter than PostgreSQL's ``deadlock_timeout``, so that of two sessions that wait for each other
#: it is always this one that gives up.
LOCK_SECONDS = 0.25
#: So long may the process be silent within a transaction.
STANDS_STILL_SECONDS = 1.0
#: A stream that cannot be read, such as one whose sequence somebody keeps locked, is looked at again after this time.
BLOCKED_SECONDS = 1.0

#: What the session must have. A weaker commit would confirm nothing. A COMMIT that was not confirmed says so by a warning. A
#: process that stands still in a transaction keeps rows from all others, so the server ends its session.
SESSION = f"""
SELECT set_config('lock_timeout', '{int(LOCK_SECONDS * 1000)}', false),
       set_config('idle_in_transaction_session_timeout', '{int(STANDS_STILL_SECONDS * 1000)}', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('client_min_messages', 'warning', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply'
                                        ELSE 'on' END, false)
"""
#: Tables of the held streams, from the arguments of their guards. A partition is read through its parent.
_TABLES = """
SELECT h.stream, h.sequence::text, h.backward, g.tgrelid::regclass::text, quote_ident(a.part[4]), quote_ident(a.part[5])
  FROM streams_held h
  JOIN pg_trigger g ON g.tgname = 'streams_guard_' || h.number
  JOIN pg_class c ON c.oid = g.tgrelid AND NOT c.relispartition
  JOIN pg_proc p ON p.oid = g.tgfoid
  JOIN pg_class home ON home.oid = 'streams_held'::regclass AND home.relnamespace = p.pronamespace
 CROSS JOIN LATERAL (SELECT string_to_array(encode(g.tgargs, 'escape'), '\\000') AS part) AS a
"""
#: Rows of streams, with a mark that is another one after a table became one of the stream's (``streams_hold_table``).
_ROWS = """
SELECT h.stream, h.xmin::text, p.instance_name, abs(p.position), p.state
  FROM streams_held AS h LEFT JOIN streams_streamposition AS p ON p.stream = h.stream
 WHERE h.stream = ANY(%(streams)s::text[])
"""
#: Last fact of each writer between two positions, and how many are new. No row of a writer above its own position, which may
#: not be final.
_LAST_FACTS = """
SELECT f.{writer}, max({sign}f.{id}), count(DISTINCT f.{id}) FILTER (WHERE {sign}f.{id} > coalesce(known.before, 0))
  FROM {table} AS f
  LEFT JOIN unnest(%(writers)s::text[], %(positions)s::bigint[], %(before)s::bigint[]) AS known (writer, position, before)
         ON known.writer = f.{writer}
 WHERE {bounds} AND {sign}f.{id} <= coalesce(known.position, %(others)s::bigint) AND f.{writer} IS NOT NULL
 GROUP BY f.{writer}
"""
#: So many facts one look reads of a stream, about. A table with millions of rows that becomes one of a stream, or a large import,
#: is passed in steps, each of them a lower position than the look's, and so a right one. Meanwhile other streams go on, and a
#: ``statement_timeout`` of the role does not end the same statement for ever.
MOST_FACTS = 250_000
#: The ID of the fact after so many.
_END = "SELECT {sign}f.{id} FROM {table} AS f WHERE {bounds} ORDER BY {sign}f.{id} OFFSET %(most)s LIMIT 1"
#: A writer without a fact for so long is retired, so that its rows are not raised with each look. The next fact undoes it. Not
#: where another stream takes IDs from the same sequence, as its facts move the position of this one.
RETIRED_AFTER = "1 hour"
RETIRE_EVERY_SECONDS = 60.0
#: Facts that readers have passed are counted up to this number.
MOST_PASSED = 10_000
_MAY_RETIRE = f"""
SELECT FROM streams_streamposition
 WHERE state = 'active' AND last_fact_at < clock_timestamp() - interval '{RETIRED_AFTER}' LIMIT 1
"""
#: Nobody stores positions from now to the end of the transaction. Not waited for: others would wait behind it.
_KEEP_POSITIONS = "LOCK TABLE streams_streamposition IN SHARE ROW EXCLUSIVE MODE NOWAIT"
#: Only a writer that no other is ahead of. Example: south has had an append open for hours, and is held at 11. North is at 20. If
#: south were retired, the linear position would be 20, and readers would pass south's fact 12.
_RETIRE = f"""
UPDATE streams_streamposition AS p SET state = 'retired', updated_at = clock_timestamp()
 WHERE state = 'active' AND last_fact_at < clock_timestamp() - interval '{RETIRED_AFTER}'
   AND NOT EXISTS (SELECT FROM streams_held AS own JOIN streams_held AS sister USING (sequence)
                    WHERE own.stream = p.stream AND sister.stream <> own.stream)
   AND NOT EXISTS (SELECT FROM streams_streamposition AS o WHERE o.stream = p.stream AND abs(o.position) > abs(p.position))
"""
#: No position of a look is stored whose look let a writer hold back only itself that was retired meanwhile.
_STILL_WRITERS = """
NOT EXISTS (SELECT FROM unnest(%(held_streams)s::text[], %(held)s::text[]) AS held (stream, writer)
              JOIN streams_streamposition AS r ON r.stream = held.stream AND r.instance_name = held.writer
             WHERE r.stream = given.stream AND r.state = 'retired')
"""
#: Rows that another session changes at this moment are left to it: two sessions never wait for each other here. What this session
#: knows of the rows, and of the stream's tables, may be a second old. Where it is not what the table says, nothing is raised.
_RAISE = f"""
UPDATE streams_streamposition AS p SET
    position = given.position,
    last_write_position = CASE WHEN given.last_write = 0 THEN p.last_write_position ELSE given.last_write END,
    last_fact_at = CASE WHEN given.last_write = 0 THEN p.last_fact_at ELSE clock_timestamp() END,
    last_advance_at = CASE WHEN given.position = p.position THEN p.last_advance_at ELSE clock_timestamp() END,
    facts_written = p.facts_written + CASE WHEN p.position = given.before THEN given.facts ELSE 0 END,
    updated_at = clock_timestamp()
  FROM (SELECT p.id, given.* FROM streams_streamposition AS p
          JOIN unnest(%(streams)s::text[], %(writers)s::text[], %(positions)s::bigint[], %(last_writes)s::bigint[],
                      %(facts)s::bigint[], %(before)s::bigint[], %(marks)s::text[])
                      AS given (stream, writer, position, last_write, facts, before, mark)
            ON p.stream = given.stream AND p.instance_name = given.writer
          JOIN streams_held AS h ON h.stream = given.stream AND h.xmin::text = given.mark
         WHERE abs(given.position) >= abs(p.position) AND p.state <> 'retired' AND {_STILL_WRITERS}
           FOR NO KEY UPDATE OF p SKIP LOCKED) AS given
 WHERE p.id = given.id
RETURNING p.stream
"""
_ENTER = f"""
INSERT INTO streams_streamposition AS p (stream, instance_name, position, last_write_position, facts_written, last_fact_at)
SELECT given.*, clock_timestamp()
  FROM unnest(%(streams)s::text[], %(writers)s::text[], %(positions)s::bigint[], %(last_writes)s::bigint[], %(facts)s::bigint[])
       AS given (stream, writer, position, last_write, facts)
 WHERE {_STILL_WRITERS}
ON CONFLICT (stream, instance_name) DO UPDATE SET
    position = CASE WHEN abs(excluded.position) > abs(p.position) THEN excluded.position ELSE p.position END,
    last_write_position = coalesce(excluded.last_write_position, p.last_write_position), state = 'active',
    facts_written = p.facts_written + excluded.facts_written, last_fact_at = excluded.last_fact_at,
    last_advance_at = clock_timestamp(), updated_at = clock_timestamp()
 WHERE p.state = 'retired'
RETURNING p.stream
"""


#: How many facts at or below a position were inserted after it was stored: no reader gets them. All facts that it covers had
#: their transaction's number before the transaction that stored it. Not counted are those of transactions that had written
#: before, and of those that are still open.
_PASSED = f"""
SELECT count(*) FROM (SELECT f.xmin AS born FROM {{table}} AS f WHERE {{bounds}} ORDER BY {{sign}}f.{{id}} DESC
                       LIMIT {MOST_PASSED}) AS f
 WHERE age(f.born) < (SELECT min(age(p.xmin)) FROM streams_streamposition AS p
                       WHERE p.stream = %(stream)s AND abs(p.position) = %(position)s)
"""
_RECORD = """
INSERT INTO streams_statuschange (at, stream, writer, reader, was, word, severity, sentence)
VALUES (clock_timestamp(), %s, '', '', '', %s, %s, %s)
"""

_UNREADABLE = (
    "run manage.py check_streams; the looker's role must be able to read the stream's tables, their owner its sequence"
)
_LOCKED = (
    "end the transaction that alters the stream's sequence or table, or keeps rows of its positions; pg_locks shows it"
)


#: Classes of errors about one row, such as that of a writer whose name is too long for the index. Tables that became a stream's
#: may have such facts.
_OF_A_ROW = frozenset({"22", "23", "54"})
#: A look on a standby (``object_not_in_prerequisite_state``) or in a transaction that keeps its snapshot.
_NO_STREAM_READABLE = frozenset({"55000", "25000"})


def _is_of_one_stream(error: BaseException) -> bool:
    return driver.still_works(error) and driver.sqlstate(error) not in _NO_STREAM_READABLE


class Unconfirmed(Exception):
    """The server warned that the COMMIT of positions may not be lasting, for instance because a standby did not confirm it."""


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    id: str
    writer: str


@dataclass(frozen=True, slots=True)
class _Row:
    position: int
    state: str


@dataclass(slots=True)
class _Rises:
    """What one look changes in the table of positions."""

    raised: list[tuple[str, str, int, int, int, int, str]]
    """Stream, writer, position, last fact (0 if there is none), number of new facts, position before, mark of the stream."""
    entered: list[tuple[str, str, int, int | None, int]]
    """Stream, writer, position, last fact, if that is at or below the position, number of new facts."""
    held: list[tuple[str, str]]
    """Stream and writer of rows that stay below what was given out, because of an open append."""

    def of(self, stream: str) -> _Rises:
        """Returns those of one stream."""
        return _Rises(
            [row for row in self.raised if row[0] == stream],
            [row for row in self.entered if row[0] == stream],
            [row for row in self.held if row[0] == stream],
        )


class PositionStore:
    """Looks, and stores what it saw, in one session of the database. It must be made anew for another session."""

    def __init__(self, *, writes_all: bool = True) -> None:
        self._tables: dict[str, list[_Table]] = {}
        self._rows: dict[str, dict[str, _Row]] = {}
        """The rows of streams as they were read last, and raised since. Not of a stream that another session may have changed."""
        self._marks: dict[str, str] = {}
        self._signs: dict[str, int] = {}
        self._sequences: dict[str, str] = {}
        self._given: dict[str, int] = {}
        """The most that this session saw given out. A sequence below it was set back."""
        self._stored: dict[str, Seen] = {}
        """What the rows of a stream show in full, so that there is nothing to do as long as a look sees the same."""
        self._others: dict[str, int] = {}
        """The position up to which no fact has a writer without a row, nor one that was not among ``_known``."""
        self._known: dict[str, list[str]] = {}
        """The active writers at that look. What they had open then may lie below ``_others``."""
        self.remembers_rows = False
        """If true, goes by the rows as they were read up to a second before. For who looks again soon: after a row that another
        session has changed meanwhile, a call may have stored nothing."""
        self._unconfirmed = writes_all
        self._is_entering = False
        """True from when newcomers are written. Only these wait for a row: that of a retired writer, which somebody has locked,
        or the same one, which somebody is inserting."""
        self._retire_due = 0.0
        self._blocked: dict[str, float] = {}
        self.is_behind = False
        """True if the last look had more facts of a stream than it read."""
        self.was_hindered = False
        """True if the last look left rows to another session that was changing them."""
        self._waits = Condition(log, "looker.stream_locked", "looker.stream_free")

    def store(self, cursor: Any, now: float, *, everything: bool = False) -> list[str]:
        """Looks, and stores positions that rose. Returns the streams with rows that were written, whose COMMIT is confirmed.

        If ``everything`` is false, streams at which this look sees the same as the last one are passed over.

        The cursor must belong to a connection in autocommit mode, with the settings of ``SESSION``. The first call (if
        ``writes_all``), and the first one after an error, writes all rows once more. They may be those of a session that
        was lost before it learned that its COMMIT was confirmed. Raises ``DatabaseError`` and ``Unconfirmed``.
        """
        if everything and now >= self._retire_due:
            self._retire_due = now + RETIRE_EVERY_SECONDS
            _retire(cursor)
        everything = everything or self._unconfirmed
        seen = self._see(cursor, now)
        moved = [stream for stream, at in seen.items() if everything or self._stored.get(stream) != at]
        self.was_hindered = False
        if not moved:
            return []
        if is_fresh := everything or not self.remembers_rows or not self._rows.keys() >= {*moved}:
            self._read_rows(cursor, moved)
        rises = self._rises(cursor, now, moved, seen)
        if not is_fresh and not {stream for stream, *_ in rises.raised} >= {*moved}:
            # Without a row to raise, nothing shows that the rows are still what this session knows of them.
            self._read_rows(cursor, moved)
            rises = self._rises(cursor, now, moved, seen)
        rows = self._rows
        try:
            written = self._write(cursor, rises)
        except driver.DatabaseError as error:
            is_kept = self._is_entering and isinstance(error, driver.lock_timed_out)
            if not is_kept and (driver.sqlstate(error) or "")[:2] not in _OF_A_ROW:
                raise
            written = self._write_each(cursor, moved, rises, now)
        for stream in moved:
            # Rows that another session held, or that were refused, must be found again by the next call.
            if written[stream] == sum(stream == name for name, *_ in (*rises.raised, *rises.entered)):
                self._stored[stream] = seen[stream]
                self._known[stream] = _active(rows[stream])
                others = seen[stream].position_of_others(self._known[stream])
                self._others[stream] = max(self._others.get(stream, 0), others)
            else:
                self._stored.pop(stream, None)
                self._rows.pop(stream)
                self.was_hindered = True
        for stream, writer, position, *_ in rises.raised:
            if stream in self._rows:
                self._rows[stream][writer] = replace(self._rows[stream][writer], position=abs(position))
        self._keep_forward(cursor, now, {stream: seen[stream].given for stream in moved})
        for stream, *_ in rises.entered:
            self._rows.pop(stream, None)
        self._unconfirmed = False
        return sorted(written)

    # --- look -----------------------------------------------------------------------------------------------------

    def _see(self, cursor: Any, now: float) -> dict[str, Seen]:
        # An open ALTER SEQUENCE, or a sequence or table of another role, must stop no other stream.
        failed = None
        if not self._blocked:
            try:
                return look(cursor)
            except driver.DatabaseError as error:
                if not _is_of_one_stream(error):
                    raise
                failed = error
        cursor.execute("SELECT stream FROM streams_held ORDER BY stream")
        names = [row[0] for row in cursor.fetchall()]
        self._blocked = {stream: due for stream, due in self._blocked.items() if stream in names and now < due}
        # To wait for each of them would hold back all others.
        for stream in locked_streams(cursor):
            self._block(stream, now, failed)
        seen: dict[str, Seen] = {}
        for stream in names:
            if stream not in self._blocked:
                try:
                    seen |= look(cursor, [stream])
                except driver.DatabaseError as error:
                    self._block(stream, now, error)
        if not self._blocked:
            self._waits.ends()
        return seen

    def _block(self, stream: str, now: float, error: BaseException | None) -> None:
        if error is not None and not _is_of_one_stream(error):
            raise error
        self._blocked[stream] = now + BLOCKED_SECONDS
        self._rows.pop(stream, None)
        if error is not None:
            self._waits.begins(
                error, stream=stream, do=_LOCKED if isinstance(error, driver.lock_timed_out) else _UNREADABLE
            )

    # --- what changes ---------------------------------------------------------------------------------------------

    def _rises(self, cursor: Any, now: float, moved: list[str], seen: dict[str, Seen]) -> _Rises:
        """Finds what a look changes, and lowers ``seen`` where there are too many facts for it. Removes what cannot be read."""
        self.is_behind = False
        rises = _Rises([], [], [])
        locked: dict[str, BaseException] = {}
        for stream in list(moved):
            try:
                if stream in locked:
                    raise locked[stream]
                seen[stream] = self._find_rises(cursor, stream, seen[stream], self._rows[stream], rises)
            except driver.DatabaseError as error:
                self._block(stream, now, error)
                locked = locked or dict.fromkeys(locked_streams(cursor), error)
                self._tables.pop(stream, None)
                moved.remove(stream)
        self._enter_sisters(moved, seen, self._rows, rises)
        return rises

    def _find_rises(self, cursor: Any, stream: str, seen: Seen, rows: Mapping[str, _Row], rises: _Rises) -> Seen:
        """Finds the rows of one stream that this look raises, and the writers that it learns.

        Returns what was seen, or less, if there are too many facts for one look. The next one goes on from there.
        """
        active, given = _active(rows), seen.given
        before = self._others.get(stream)
        if before is None or before > given:  # the first look, or the sequence began anew
            # No row lies above what an earlier look saw of the writers without a row.
            before = max((row.position for row in rows.values() if row.position <= given), default=0)
            self._others[stream] = before
        # A writer that was retired since may have had an append open, and committed it by now.
        known = self._known.get(stream, ())
        retired = [rows[writer].position for writer in known if writer in rows and writer not in active]
        self._others[stream] = before = min([before, *retired])

        def lows() -> list[int]:
            rising = [rows[writer].position for writer in active if found[writer] > rows[writer].position]
            return [*rising, before] if others > before else rising

        found, others = seen.positions_of(active), seen.position_of_others(active)
        if given - min(lows(), default=given) > MOST_FACTS:
            end = self._end(cursor, stream, min(lows()), given)
            self.is_behind |= end < given
            seen = replace(seen, given=end, position=min(seen.position, end))
            found, others = seen.positions_of(active), seen.position_of_others(active)
        low = min(lows(), default=None)
        upto = {writer: found.get(writer, others) for writer in rows}
        lasts = {} if low is None else self._last_facts(cursor, stream, low, rows, upto, others)
        sign = self._signs[stream]
        for writer in active:
            row, position = rows[writer], max(found[writer], rows[writer].position)
            if position > row.position or (self._unconfirmed and position <= given):
                last, facts = lasts.get(writer, (0, 0))
                mark = self._marks[stream]
                rises.raised.append((stream, writer, sign * position, sign * last, facts, sign * row.position, mark))
            if position < given:
                rises.held.append((stream, writer))
        for writer, (last, facts) in lasts.items():
            if writer not in found and (writer not in rows or last > rows[writer].position):
                position = min(seen.position_of(writer), others)
                rises.entered.append(
                    (stream, writer, sign * position, sign * last if last <= position else None, facts)
                )
        return seen

    def _enter_sisters(
        self,
        moved: Sequence[str],
        seen: Mapping[str, Seen],
        rows: Mapping[str, Mapping[str, _Row]],
        rises: _Rises,
    ) -> None:
        # All of them move.
        known = {(stream, writer) for stream, writer, *_ in rises.entered}
        for stream, writer in sorted(known):
            for sister in moved:
                is_new = writer not in rows[sister] and (sister, writer) not in known
                if is_new and self._sequences[sister] == self._sequences[stream]:
                    at = seen[sister]
                    position = min(at.position_of(writer), at.position_of_others(_active(rows[sister])))
                    rises.entered.append((sister, writer, self._signs[sister] * position, None, 0))

    def _last_facts(
        self, cursor: Any, stream: str, low: int, rows: Mapping[str, _Row], positions: Mapping[str, int], others: int
    ) -> dict[str, tuple[int, int]]:
        """Returns the ID of the last fact of each writer above ``low``, and the number of its facts above its row.

        ``positions`` has the position of each writer of ``rows`` up to which its facts are final, ``others`` that of all other
        writers. A fact may have rows in several tables. The table with the most facts counts.
        """
        found = dict[str, tuple[int, int]]()
        upto = max([others, *positions.values()])
        for table in self._tables[stream]:
            statement = self._about(stream, table, _LAST_FACTS)
            # One table at a time: a TRUNCATE of both would wait for this statement, and this statement for it.
            cursor.execute(
                statement,
                {
                    "writers": list(positions),
                    "positions": list(positions.values()),
                    "before": [rows[writer].position for writer in positions],
                    "others": others,
                    "low": low,
                    "upto": upto,
                },
            )
            for writer, last, facts in cursor.fetchall():
                most = found.get(writer, (0, 0))
                found[writer] = max(most[0], last), max(most[1], facts)
        return found

    def _end(self, cursor: Any, stream: str, low: int, upto: int) -> int:
        """Returns the position up to which one look reads the facts above ``low``, at most ``upto``."""
        values = {"low": low, "upto": upto, "most": MOST_FACTS}
        for table in self._tables[stream]:
            cursor.execute(self._about(stream, table, _END), values)
            upto = min([upto, *(end for (end,) in cursor.fetchall())])
        return upto

    def _about(self, stream: str, table: _Table, statement: str) -> str:
        """Returns a statement about the facts of a table between two positions."""
        sign = "-" if self._signs[stream] < 0 else ""
        bounds = f"f.{table.id} > %(low)s::bigint AND f.{table.id} <= %(upto)s::bigint"
        if sign:
            bounds = f"f.{table.id} < -%(low)s::bigint AND f.{table.id} >= -%(upto)s::bigint"
        return statement.format(table=table.name, id=table.id, writer=table.writer, bounds=bounds, sign=sign)

    def _read_rows(self, cursor: Any, streams: Sequence[str]) -> None:
        """Reads the rows of these streams, and all streams' tables if one of these has others than before."""
        cursor.execute(_ROWS, {"streams": streams})
        self._rows |= {stream: {} for stream in streams}
        marks: dict[str, str] = {}
        for stream, mark, writer, *row in cursor.fetchall():
            marks[stream] = mark
            if writer is not None:
                self._rows[stream][writer] = _Row(*row)
        if any(stream not in self._tables or self._marks.get(stream) != marks.get(stream) for stream in streams):
            self._read_tables(cursor, streams)
            self._marks |= marks

    def _read_tables(self, cursor: Any, streams: Sequence[str]) -> None:
        cursor.execute(_TABLES)
        self._tables, self._signs = {stream: [] for stream in streams}, dict.fromkeys(streams, 1)
        for stream, sequence, backward, *table in cursor.fetchall():
            self._sequences[stream] = sequence
            self._tables.setdefault(stream, []).append(_Table(*table))
            self._signs[stream] = -1 if backward else 1

    # --- a sequence that was set back -----------------------------------------------------------------------------

    def _keep_forward(self, cursor: Any, now: float, given: Mapping[str, int]) -> None:
        """Moves sequences forward again that somebody has set back below stored positions, so that no more facts get lost.

        Only where this session saw these positions given out. Otherwise it may be a position that is wrong.
        """
        back = {stream: known for stream, at in given.items() if at < (known := self._given.get(stream, 0))}
        self._given |= {**given, **back}
        for stream, known in back.items():
            highest = max((row.position for row in self._rows.get(stream, {}).values()), default=0)
            if not given[stream] < highest <= known:
                continue
            sequence = self._sequences[stream]
            self._stored.pop(stream, None)
            try:
                if (
                    at := last_values(cursor, [sequence])[sequence]
                ) < highest:  # nobody else has moved it since the look
                    move_forward(cursor, sequence, highest, lock_seconds=LOCK_SECONDS)
                    self._record_set_back(cursor, stream, at, highest)
            except driver.DatabaseError as error:
                self._block(stream, now, error)
            except SequenceBusy as error:
                self._block(stream, now, error.__cause__ or error)

    def _record_set_back(self, cursor: Any, stream: str, given: int, highest: int) -> None:
        passed = 0
        for table in self._tables[stream]:
            values = {"low": 0, "upto": given, "stream": stream, "position": highest}
            cursor.execute(self._about(stream, table, _PASSED), values)
            passed = max(passed, *cursor.fetchone())
        log.error("stream.sequence_set_back", stream=stream, was=given, to=highest, facts_passed=passed)
        sentence = (
            f"its sequence was set back from {highest}, and moved there again when it was at {given}; "
            f"{counted(passed, 'fact')} got IDs that readers have passed"
        )
        cursor.execute(_RECORD, [stream, SET_BACK, 3 if passed else 2, sentence])

    # --- write ----------------------------------------------------------------------------------------------------

    def _write(self, cursor: Any, rises: _Rises) -> Counter[str]:
        """Writes the rows, in one transaction. Returns how many rows of each stream were raised.

        If the server did not confirm the COMMIT, raises ``Unconfirmed``. Then the next call writes all rows again.
        """
        if not rises.raised and not rises.entered:
            return Counter()
        self._unconfirmed = True
        self._is_entering = False
        warnings = driver.notices(cursor.connection)
        warnings.clear()
        if rises.entered:
            with driver.in_transaction(cursor):
                written = _execute(cursor, _RAISE, rises.raised, rises.held)
                self._is_entering = True
                written += _execute(cursor, _ENTER, rises.entered, rises.held)
        else:
            written = _execute(cursor, _RAISE, rises.raised, rises.held)
        if warnings:
            raise Unconfirmed(str(warnings[0]).strip())
        return Counter(written)

    def _write_each(self, cursor: Any, moved: list[str], rises: _Rises, now: float) -> Counter[str]:
        """Writes the rows of one stream after another. A stream whose rows are refused stops no other, and leaves ``moved``."""
        written = Counter[str]()
        for stream in list(moved):
            try:
                written += self._write(cursor, rises.of(stream))
            except driver.DatabaseError as error:
                self._block(stream, now, error)
                moved.remove(stream)
        return written


def _active(rows: Mapping[str, _Row]) -> list[str]:
    return [writer for writer, row in rows.items() if row.state != RETIRED]


def _retire(cursor: Any) -> None:
    cursor.execute(_MAY_RETIRE)
    if cursor.fetchone() is not None:
        # A VACUUM of the table, or somebody's open UPDATE of it, must not stop the looks.
        with suppress(driver.lock_timed_out), driver.in_transaction(cursor):
            cursor.execute(_KEEP_POSITIONS)
            cursor.execute(_RETIRE)


def _execute(
    cursor: Any, statement: str, rows: Sequence[tuple[Any, ...]], held: Sequence[tuple[str, str]]
) -> list[str]:
    names = ("streams", "writers", "positions", "last_writes", "facts", "before", "marks")
    if not rows:
        return []
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=False))
    held_by_name = {"held_streams": [stream for stream, _ in held], "held": [writer for _, writer in held]}
    cursor.execute(statement, columns | held_by_name)
    return [row[0] for row in cursor.fetchall()]
