"""What the sequence of a stream must be, and how sequences are read (pure).

A stream relies on its sequence: IDs ascend for all sessions together, none is given out twice, and the first one lies
above the position of the empty stream. An administrator can change each of the properties that this depends on. So
processes compare the sequence with this description when they begin to write, ``check_streams`` and the live page do so
all the time, and all of them read it with one query.

A sequence's own row is not read with a plain SELECT, as it may show IDs that were not given out yet: see
``_NEVER_USED``. The functions take a cursor of any connection.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from streams.core.declaration import StreamDeclaration

_LARGEST = 2**63 - 1
#: No site writes so many facts that fewer IDs than this are left. Somebody has set the sequence to a wrong number.
_FEW_LEFT = 2**63 // 100
#: With fewer IDs left, writers may stop within days.
_ALMOST_NONE_LEFT = 2**32
_MIGRATE = "manage.py migrate, or put it back"

#: The last IDs that these sequences gave out, read under the lock that ``nextval`` takes. Null for one that gave out none.
_LAST_VALUES = """
SELECT given.sequence, pg_sequence_last_value(given.sequence::regclass)
FROM unnest(%(sequences)s::text[]) WITH ORDINALITY AS given (sequence, place) ORDER BY given.place
"""
#: The same for sequences that have given out no ID: one less than their next one, which may differ from their start.
#:
#: ``nextval`` writes the value that it logs, up to 32 IDs ahead, into the shared page before it writes the true value, and a
#: scan reads the row without the page's lock. So the row counts only if the sequence has still given out nothing when it is
#: asked afterwards, under the lock: then no ``nextval`` was at work while the row was read.
_NEVER_USED = """
WITH seen AS MATERIALIZED ({rows})
SELECT number, coalesce(pg_sequence_last_value(id), next - 1) FROM seen ORDER BY number
"""
_ROW = "SELECT {number} AS number, tableoid AS id, last_value AS next, is_called AS is_given FROM {sequence}"
_ROW_IS_FREE = """
SELECT a.name FROM unnest(%(sequences)s::text[]) AS a (name)
 WHERE has_sequence_privilege(to_regclass(a.name), 'SELECT') AND NOT {is_locked}
"""

#: Locks on relations that another transaction has taken, or waits for, to alter them. Nobody else can read such a sequence.
_ALTERING = """FROM pg_catalog.pg_locks k
WHERE k.locktype = 'relation' AND k.pid IS DISTINCT FROM pg_backend_pid()
  AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""


def is_altered_sql(sequence: str) -> str:
    """Returns the SQL condition that whoever reads the sequence would wait for a transaction that alters it. It does not wait."""
    return f"{sequence}::oid = ANY (ARRAY(SELECT k.relation {_ALTERING}))"


def is_locked_sql(table: str) -> str:
    """Returns the SQL condition that whoever reads the table would wait for another transaction. It does not wait."""
    return f"{table}::oid = ANY (ARRAY(SELECT k.relation {_ALTERING} AND k.mode = 'AccessExclusiveLock'))"


_WHO = f"""string_agg(DISTINCT coalesce('database session ' || a.pid || ' of role ' || a.usename || coalesce(
               ' (' || nullif(a.application_name, '') || ', ' || a.state || ')', ''), 'a prepared transaction')
               || CASE WHEN k.granted THEN '' ELSE ', which waits for session '
                       || array_to_string(pg_blocking_pids(k.pid), ', ') END, '; ')
      FROM (SELECT k.pid, k.relation, k.granted, k.mode {_ALTERING}) AS k LEFT JOIN pg_stat_activity a ON a.pid = k.pid"""
_LOCKED_TABLES = f"""
SELECT c.oid::regclass::text, {_WHO} JOIN pg_class c ON c.oid = k.relation AND c.relkind IN ('r', 'p')
 WHERE k.mode = 'AccessExclusiveLock' AND c.relnamespace <> 'pg_catalog'::regnamespace GROUP BY 1 ORDER BY 1
"""
#: Who alters a sequence: empty for the first second. Null if nobody does.
_ALTERED_BY = f"""
CASE WHEN {is_altered_sql("c.oid")} THEN coalesce((
    SELECT {_WHO}
     WHERE k.relation = c.oid AND coalesce(a.xact_start, '-infinity') < clock_timestamp() - interval '1 second'
), '') END
"""
#: All that this module says of sequences, for the streams in ``given``. A value is read only where the role may read it, and
#: an unlogged sequence has none on a standby. The names of a stream lead into several schemas if its tables and its sequence
#: are not in the same one, or if another site's are where this site's positions are not.
_SEQUENCES = f"""
SELECT given.stream, c.relpersistence::text, s.seqtypid::regtype::text, s.seqstart, s.seqmin, s.seqmax, s.seqincrement,
       s.seqcache, s.seqcycle, coalesce(has_sequence_privilege(c.oid, 'SELECT'), false),
       CASE WHEN {is_altered_sql("c.oid")} THEN NULL
            WHEN has_sequence_privilege(c.oid, 'SELECT') AND (c.relpersistence = 'p' OR NOT pg_is_in_recovery())
            THEN pg_sequence_last_value(c.oid) END,
       ARRAY(
           SELECT DISTINCT n.nspname::text FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
           WHERE c.oid IS NOT NULL AND (r.oid = c.oid OR r.oid = ANY(tables.ids) OR r.oid = home.oid AND EXISTS (
               SELECT FROM pg_class rival WHERE c.relnamespace <> home.relnamespace
               AND (rival.relname, rival.relnamespace) IN ((c.relname, home.relnamespace), (home.relname, c.relnamespace))))
           ORDER BY 1
       ),
       tables.missing,
       coalesce((
           SELECT d.refobjid::regclass::text FROM pg_depend d
           WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.objid = c.oid
             AND d.deptype IN ('a', 'i') AND d.refobjid <> ALL (tables.ids) LIMIT 1
       ), ''),
       {_ALTERED_BY}
FROM jsonb_to_recordset(%(given)s::jsonb) AS given (stream text, sequence text, tables text[])
LEFT JOIN pg_class c ON c.oid = to_regclass(given.sequence) AND c.relkind = 'S'
LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
LEFT JOIN pg_class home ON home.oid = to_regclass('streams_streamposition')
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(t.oid) FILTER (WHERE t.oid IS NOT NULL), '{{}}'),
           coalesce(array_agg(one.name) FILTER (WHERE t.oid IS NULL), '{{}}')
    FROM unnest(given.tables) AS one (name) LEFT JOIN pg_class t ON t.oid = to_regclass(quote_ident(one.name))
) AS tables (ids, missing)
"""

_NOW_CALLED = """
SELECT h.stream, format('%%I.%%I', n.nspname, c.relname) FROM streams_held h
JOIN pg_class c ON c.oid = h.sequence AND c.relkind = 'S' JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE h.stream = ANY (%(streams)s)
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something about a sequence that its stream cannot do with.

    ``text`` continues "The sequence". ``clause`` is the part of ALTER SEQUENCE that mends it. If no such statement can,
    ``clause`` is empty and ``remedy`` says what does. ``loses_facts`` is false if appends do no harm until the sequence
    is restarted.
    """

    text: str
    clause: str = ""
    remedy: str = ""
    loses_facts: bool = True


@dataclass(frozen=True, slots=True)
class FoundSequence:
    """The sequence of a stream as the database has it.

    ``persistence`` is that of ``pg_class``, or None if there is no sequence of that name. ``last_value`` is the last ID
    that was given out, or one less than the first. It is None if it cannot be read.
    """

    stream: str
    sequence: str
    empty_position: int
    persistence: str | None
    data_type: str
    start: int
    minimum: int
    maximum: int
    increment: int
    cache: int
    cycles: bool
    is_readable: bool
    last_value: int | None
    schemas: tuple[str, ...]
    """The schemas into which the names of the stream lead. One, if nothing is wrong."""
    missing_tables: tuple[str, ...]
    other_owner: str
    """The table that owns the sequence, if that is none of the stream's tables."""
    altered_by: str | None = None
    """Who is altering the sequence, so that its value cannot be read. Empty for the first second. None if nobody does."""
    now_called: str = ""
    """The name, with the schema, under which the stream's triggers still find the sequence, if its own name leads nowhere."""

    @property
    def left(self) -> int:
        """The number of IDs that the sequence can still give out. All of them, if its value cannot be read."""
        return _LARGEST - (self.last_value or 0)

    @property
    def is_almost_used_up(self) -> bool:
        """True if appends are refused already, or may be refused soon."""
        return self.left < _ALMOST_NONE_LEFT

    @property
    def is_there(self) -> bool:
        """True if the sequence and all tables of the stream exist."""
        return self.persistence is not None and not self.missing_tables

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for name in self.missing_tables:
            yield Fault(f"belongs to a stream whose table {name} is missing", remedy=_MIGRATE)
        if self.persistence is None:
            yield self._absence
            return
        if self.altered_by:
            text = f"is being altered by {self.altered_by}: nobody can append, and readers of its stream wait"
            yield Fault(text, remedy="end that transaction", loses_facts=False)
        if not self.is_readable:
            grant = f"GRANT SELECT, USAGE, UPDATE ON SEQUENCE {self.sequence} TO the role"
            yield Fault("may not be read by this role", remedy=f"as the owner of the sequence: {grant}")
        if len(self.schemas) > 1:
            text = f"and its tables are found in several schemas ({', '.join(self.schemas)})"
            yield Fault(
                text, remedy="correct search_path (ALTER ROLE … RESET search_path), or remove what hides the others"
            )
        if self.persistence == "t":
            yield Fault("is a temporary one that hides the real one", remedy="drop it, or end its session")
        elif self.persistence != "p":
            yield Fault("is UNLOGGED, and begins anew after a crash", "SET LOGGED")
        if self.other_owner:
            yield Fault(f"is owned by {self.other_owner}, and is restarted and dropped with it", "OWNED BY NONE")
        if self.left < _FEW_LEFT:
            yield Fault(
                f"is at {self.last_value} and has {self.left:,} IDs left",
                remedy=f"stop all processes; if no fact and no stored position is up there, SELECT setval('{self.sequence}', "
                "the highest of them); otherwise restore what was there before",
                loses_facts=False,
            )
        for has, must in self._properties():
            if has != must:
                # A sequence that has begun is past its start.
                yield Fault(f"has {has}, not {must}", must, loses_facts=not must.startswith("START"))

    @property
    def _absence(self) -> Fault:
        if not self.now_called:
            return Fault("is missing", remedy=_MIGRATE)
        schema, _, name = self.now_called.rpartition(".")
        text = f"is called {self.now_called}"
        if name != self.sequence:
            return Fault(text, f"RENAME TO {self.sequence}")
        return Fault(text, remedy=f"ALTER SEQUENCE {self.now_called} SET SCHEMA the schema of the site, not {schema}")

    def _properties(self) -> Iterator[tuple[str, str]]:
        yield f"AS {self.data_type}", "AS bigint"
        yield f"INCREMENT BY {self.increment}", "INCREMENT BY 1"
        yield f"MINVALUE {self.minimum}", "MINVALUE 1"
        yield f"MAXVALUE {self.maximum}", f"MAXVALUE {_LARGEST}"
        yield f"START WITH {self.start}", f"START WITH {self.empty_position + 1}"
        yield f"CACHE {self.cache}", "CACHE 1"
        yield "CYCLE" if self.cycles else "NO CYCLE", "NO CYCLE"

    def mending(self, next_value: int | None = None) -> list[str]:
        """Returns the statements that mend the faults that can be mended, for the sequence's owner.

        If ``next_value`` is given, the sequence also goes on with this ID. It must not be below its next one.
        """
        clauses = [fault.clause for fault in self.faults if fault.clause]
        alone = [clause for clause in clauses if clause.startswith(("SET", "OWNED"))]
        together = [clause for clause in clauses if clause not in alone]
        # START and SET LOGGED write the sequence anew, with the count of IDs that are logged ahead. The WAL does not have
        # these IDs any more: after a crash they would be given out again. NO CYCLE sets the count to 0, as RESTART does.
        if self.now_called:
            return [f"ALTER SEQUENCE {self.now_called} {clause}" for clause in clauses]
        if "NO CYCLE" not in together and any(clause.startswith(("SET", "START")) for clause in clauses):
            together.append("NO CYCLE")
        together += [] if next_value is None else [f"RESTART WITH {next_value}"]
        return [f"ALTER SEQUENCE {self.sequence} {clause}" for clause in [*alone, " ".join(together)] if clause]

    @property
    def is_mendable(self) -> bool:
        return all(fault.clause for fault in self.faults)

    @property
    def fix(self) -> str:
        statements = "; ".join(self.mending())
        mends = [f"check_streams --repair as the owner of the sequence, or: {statements}"] if statements else []
        return "; ".join([*dict.fromkeys(fault.remedy for fault in self.faults if fault.remedy), *mends])

    @property
    def sentence(self) -> str:
        wrong = "; it ".join(fault.text for fault in self.faults)
        return f"The sequence {self.sequence} {wrong}. To mend it: {self.fix}." if wrong else ""

    def behind(self, in_tables: int, stored: int) -> str:
        """Returns what the sequence's value lies behind (``behind``). Empty if the value cannot be read."""
        return "" if self.last_value is None else behind(self.last_value, in_tables, stored, self.empty_position)


def behind(value: int, in_tables: int, stored: int, empty_position: int) -> str:
    """Returns what a sequence lies behind, of which ``value`` was the last ID. Returns an empty text if it is right.

    ``in_tables`` is the highest ID in the tables, and ``stored`` is the highest stored position. An ID that is not above
    the position of an empty stream would reach no reader.
    """
    if stored > value:
        return "behind stored position"
    if in_tables > value:
        return "behind table"
    return "before its first value" if value < empty_position else ""


def last_values(cursor: Any, sequences: Collection[str]) -> dict[str, int]:
    """Returns ``{sequence: last ID that it gave out}``, or one less than the ID that it will give out first.

    The names are SQL. The database raises an error for a sequence that is missing, or that the role may not read.
    """
    cursor.execute(_LAST_VALUES, {"sequences": list(sequences)})
    found: dict[str, int | None] = dict(cursor.fetchall())
    unused = _read_unused(cursor, [name for name, value in found.items() if value is None])
    return {name: unused[name] if value is None else value for name, value in found.items()}


def locked_tables(cursor: Any) -> dict[str, str]:
    """Returns ``{table: who keeps others from reading it}``. Does not wait."""
    cursor.execute(_LOCKED_TABLES)
    return dict(cursor.fetchall())


def _read_unused(cursor: Any, sequences: Collection[str]) -> dict[str, int]:
    """Does the same as ``last_values`` for sequences that have given out no ID, or had not a moment ago."""
    if not sequences:
        return {}
    cursor.execute(_NEVER_USED.format(rows=_rows(sequences)))
    return dict(zip(sequences, (int(value) for _, value in cursor.fetchall()), strict=True))


def _rows(sequences: Collection[str]) -> str:
    return " UNION ALL ".join(_ROW.format(number=number, sequence=name) for number, name in enumerate(sequences))


def values_of_altered(cursor: Any, sequences: Collection[str]) -> dict[str, int]:
    """Returns ``{name: last value}`` of those sequences that somebody alters and whose rows can be read. Does not wait.

    ALTER SEQUENCE leaves the row as it was until COMMIT, and no ``nextval`` is at work beside it.
    """
    cursor.execute(_ROW_IS_FREE.format(is_locked=is_locked_sql("to_regclass(a.name)")), {"sequences": list(sequences)})
    if not (free := [name for (name,) in cursor.fetchall()]):
        return {}
    cursor.execute(f"SELECT next - (NOT is_given)::int FROM ({_rows(free)}) AS seen ORDER BY number")
    return dict(zip(free, (int(value) for (value,) in cursor.fetchall()), strict=True))


def _now_called(cursor: Any, streams: Collection[str]) -> dict[str, str]:
    """Returns ``{stream: name}`` of sequences that somebody has renamed, or moved to another schema."""
    cursor.execute("SELECT has_table_privilege(to_regclass('streams_held'), 'SELECT')")
    if not cursor.fetchone()[0]:
        return {}
    cursor.execute(_NOW_CALLED, {"streams": list(streams)})
    return dict(cursor.fetchall())


def read_sequences(cursor: Any, declarations: Collection[StreamDeclaration]) -> dict[str, FoundSequence]:
    """Returns the sequences of the streams, ``{stream: sequence}``. Streams of one sequence must be given together."""
    tables: dict[str, list[str]] = {}
    for d in declarations:
        tables.setdefault(d.sequence, []).extend(table.name for table in d.tables)
    given = [{"stream": d.name, "sequence": d.sequence, "tables": tables[d.sequence]} for d in declarations]
    cursor.execute(_SEQUENCES, {"given": json.dumps(given)})
    rows = {stream: values for stream, *values in cursor.fetchall()}
    found = {}
    for d in declarations:
        *values, schemas, missing, owner, altered_by = rows[d.name]
        values += [tuple(schemas), tuple(missing), owner, altered_by]
        found[d.name] = FoundSequence(d.name, d.sequence, d.empty_position, *values)
    if lost := [name for name, f in found.items() if f.persistence is None]:
        found |= {name: replace(found[name], now_called=called) for name, called in _now_called(cursor, lost).items()}
    unused = [
        f
        for f in found.values()
        if f.last_value is None and f.is_readable and f.persistence == "p" and f.altered_by is None
    ]
    values = _read_unused(cursor, sorted({f.sequence for f in unused}))
    return found | {f.stream: replace(f, last_value=values[f.sequence]) for f in unused}
