"""What ``migrate`` installs in PostgreSQL for appends: functions, triggers, a table (pure).

The functions hold a stream, guard its IDs, refuse changes, look, and install the rest. The table has the held streams. A
migration has a copy of this text, and ``tests/integration/events/test_installed_sql.py`` compares both.

A *hold* is a shared advisory lock of the appending transaction. Its key names the stream, the class of the writer, and a
*bound*: every ID that the transaction takes after it lies above the bound. A *look* reads what each sequence gave out, and
then the lowest bounds in ``pg_locks``. Rows up to the position of a look are read by a later statement. The page
``docs/explanation/proof.md`` proves that this reader misses no fact, and its steps say what each line here is for.

The key is one bigint: number of the stream (12 bits), class of the writer (12 bits), bound modulo 2^40 (40 bits).

Everything lies in the schema of the site's tables. The functions that read sequences or take locks run with the rights of
their owner and with a fixed search path. So a role that may only insert can append, and a role that may only read can look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType

from streams.core.sequences import is_altered_sql

__all__ = [
    "ANY_WRITER",
    "CLASSES",
    "DEFAULT_WRITER",
    "DROP",
    "FUNCTIONS",
    "INSTALL",
    "MAINTENANCE",
    "WRITER",
    "bodies",
    "class_of",
]

#: The setting with which a session, or a transaction, names its writer.
WRITER = "streams.writer"
#: The setting with which a transaction may change facts, or choose their IDs.
MAINTENANCE = "streams.maintenance"
#: The writer of facts whose session has named none (``streams.core.declaration.MAIN_PROCESS``).
DEFAULT_WRITER = "master"
#: A longer name, or one with blanks, is refused: names are fields on the wire, and keys of an index. ``streams.core.names`` is
#: stricter, before it fills in the name of the machine.
LONGEST_WRITER = 200
#: Number of classes of writers that have a name. Writers of one class hold each other back, nothing worse.
CLASSES = 4095
#: The class of a session that has named no writer. It holds all writers back, so its rows may have any writer.
ANY_WRITER = 0


@lru_cache(maxsize=10_000)
def class_of(writer: str) -> int:
    """Returns the class of a writer: a number that the lock's key has in place of the name.

    The same on every server, so the class is computed on both sides.
    """
    return 1 + int.from_bytes(hashlib.sha256(writer.encode()).digest()[:4], "big") % CLASSES if writer else ANY_WRITER


#: The class of the name in the variable ``writer``, which is null if the session has none.
_CLASS = (
    "CASE WHEN writer IS NULL THEN 0 ELSE "
    "1 + mod(('x' || left(encode(sha256(convert_to(writer, 'UTF8')), 'hex'), 8))::bit(32)::bigint, 4095) END"
)

#: Takes the hold. Expects the variables of ``_HOLD_VARIABLES``. The transaction remembers the bound of each class in a setting.
#:
#: * ``pg_sequence_last_value``, never ``SELECT last_value``. A SELECT reads the sequence's page without its lock. Each 32nd
#:   nextval writes the value that it logs ahead into that page for a moment, so a SELECT may see up to 32 IDs that nobody has.
#: * The bound is remembered, not only that there is one. It is used only if it is lower than the sequence, and the lock is taken
#:   each time. So a value that somebody SET for a whole session can delay readers, but never switches the hold off. A value that
#:   is too low by 2^38 counts as none: modulo 2^40, a look would take its lock for one far above the sequence.
#: * The block has an exception clause, which makes it a subtransaction. So the lock, the memory and the rows belong to the same
#:   transaction or savepoint. Otherwise a lock taken during a FETCH would belong to the cursor. If the cursor failed in a later
#:   savepoint, the lock would go with it, and the row would stay.
#: * A lock that a stranger holds exclusively is not waited for. The next lower bound is right, too.
_LOCK_BOUND = """
    IF bound IS NULL THEN  -- the sequence gave out no ID yet
        bound := {{schema}}.streams_given(source);
    END IF;
    IF held < bound - 274877906944 THEN
        held := NULL;
    END IF;
    bound := least(bound, held);
    IF number IS NULL OR bound IS NULL THEN  -- the lock functions take no lock for null, and raise no error
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'Nothing holds this stream, because its sequence (' || coalesce(source::text, 'none')
                || ') cannot be read.',
            HINT = 'Run: manage.py migrate';
    END IF;
    BEGIN
        WHILE NOT pg_try_advisory_xact_lock_shared((number << 52) | (class << 40) | (bound & 1099511627775)) LOOP
            bound := bound - 1;
        END LOOP;
        IF bound IS DISTINCT FROM held THEN
            slot := set_config(slot, bound::text, true);
        END IF;
        {remember_lowest}
    EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
        RAISE;
    END;
"""
_HOLD_VARIABLES = f"""
    writer text := nullif(current_setting('{WRITER}', true), '');
    class bigint := {_CLASS};
    slot text := 'streams.held' || number || '_' || class;
    held bigint := nullif(current_setting(slot, true), '');
    bound bigint := pg_sequence_last_value(source);
"""
#: A partitioned table has a trigger for each row as well, whose condition must be cheap, so it reads three settings. They count
#: only in the transaction that set them. Others, which somebody SET for a session, would let rows into a partition without holds.
_REMEMBER_LOWEST = """slot := set_config('streams.held' || number,
                least(bound, nullif(current_setting('streams.held' || number, true), '')::bigint)::text, true);
            slot := set_config('streams.held' || number || '_writer', coalesce(writer, ''), true);
            slot := set_config('streams.held' || number || '_transaction', pg_current_xact_id()::text, true);"""

#: What a sequence gave out that gave out no ID yet: one less than its next one, which may lie below its start (setval, a dump,
#: ALTER SEQUENCE START). A higher value would be a position that passes IDs to come. A SELECT may read what nextval logs ahead,
#: so the row counts only if the sequence has still given out nothing afterwards: then no nextval was at work meanwhile.
#: The first line refuses what is no sequence. A view of the caller's would run functions of the caller's with the owner's rights.
_GIVEN = """
DECLARE
    given bigint;
BEGIN
    PERFORM pg_sequence_last_value(source);
    EXECUTE 'SELECT last_value - 1 FROM ' || source INTO given;
    RETURN coalesce(pg_sequence_last_value(source), given);
END
"""

#: BEFORE INSERT FOR EACH STATEMENT. Arguments: number of the stream, its sequence, and, for a partitioned table, anything.
_HOLD = f"""
DECLARE
    number bigint := TG_ARGV[0];
    source regclass := TG_ARGV[1];
{_HOLD_VARIABLES}
BEGIN
{_LOCK_BOUND.format(remember_lowest=f"IF TG_NARGS > 2 THEN {_REMEMBER_LOWEST} END IF;")}
    RETURN NULL;
END
"""
#: For a caller that takes IDs before it inserts the rows, in the same transaction. Returns the bound.
_HOLD_BY_NAME = f"""
DECLARE
    number bigint := (SELECT h.number FROM {{schema}}.streams_held h WHERE h.stream = name);
    source regclass := (SELECT h.sequence FROM {{schema}}.streams_held h WHERE h.stream = name);
{_HOLD_VARIABLES}
BEGIN
{_LOCK_BOUND.format(remember_lowest=_REMEMBER_LOWEST)}
    RETURN bound;
END
"""


#: Rows that a subscription applies were decided elsewhere. Its worker fires no trigger for a statement, only those for a row. But
#: its first copy of a table is a COPY, which fires all. Not asked of ``pg_stat_get_activity``: it answers null to a role of
#: SET ROLE and of SECURITY DEFINER.
_APPLIES = "EXISTS (SELECT FROM pg_stat_get_subscription(NULL) WHERE pid = pg_backend_pid())"


def _unfit(name: str) -> str:
    return f"length({name}) NOT BETWEEN 1 AND {LONGEST_WRITER} OR {name} ~ '[[:space:][:cntrl:]]'"


#: Anybody may set ``MAINTENANCE``, so only who may change or delete facts anyway chooses their IDs. Otherwise a role that may
#: only insert could append what readers have passed, or take the last ID that there is.
#:
#: AFTER INSERT FOR EACH STATEMENT, with the new rows. Arguments: number of the stream, its sequence, 1 or -1 (backward), the
#: columns of ID and writer, and ``shared`` if rows of another sign belong to another stream. Each pair of columns has a function.
_GUARD = f"""
#variable_conflict use_variable
DECLARE
    sign bigint := TG_ARGV[2];
    shared boolean := TG_NARGS > 5;
    writer text := nullif(current_setting('{WRITER}', true), '');
    class bigint := {_CLASS};
    bound bigint := coalesce(
        nullif(current_setting('streams.held' || TG_ARGV[0] || '_' || class, true), '')::bigint, 9223372036854775807);
    given bigint := coalesce(pg_sequence_last_value(TG_ARGV[1]::regclass), 0);
    -- Null if the session has named no writer.
    unfit boolean := {_unfit("writer")};
    wrong record;
BEGIN
    -- No reader would find a row without an ID, or without a writer. The ID 0 belongs to neither of two streams of one table.
    SELECT f.{{id}} AS id, f.{{writer}} AS writer,
           f.{{writer}} IS NULL OR coalesce(unfit, {_unfit("f.{writer}")}) AS unfit
      INTO wrong FROM fresh f
     WHERE (coalesce(sign * f.{{id}} <= bound OR sign * f.{{id}} > given, true) OR f.{{writer}} <> writer
            OR f.{{writer}} IS NULL OR coalesce(unfit, {_unfit("f.{writer}")}))
       AND (NOT shared OR coalesce(sign * f.{{id}} >= 0, true)) LIMIT 1;
    IF FOUND AND wrong.unfit THEN  -- whatever the maintenance
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'Table ' || TG_TABLE_NAME || ': ' || quote_nullable(left(wrong.writer, 100))
                || ' cannot be the name of a writer.',
            HINT = 'Set {WRITER} to 1 to {LONGEST_WRITER} characters without blanks.';
    ELSIF FOUND AND NOT {_APPLIES} AND NOT (coalesce(current_setting('{MAINTENANCE}', true), '') = 'on' AND has_table_privilege(
            coalesce(nullif(current_setting('role'), 'none'), session_user)::name, TG_RELID, 'UPDATE, DELETE')) THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'Table ' || TG_TABLE_NAME || ': the fact ' || coalesce(wrong.id::text, 'without ID') || ' of writer '
                || wrong.writer || ' is refused. This transaction may append as ' || coalesce(writer, 'any writer')
                || ' the IDs that it takes above '
                || CASE WHEN bound = 9223372036854775807 THEN '(no hold)' ELSE bound::text END || ', and ' || given
                || ' was the last ID given out.',
            HINT = 'Leave the ID and the writer to their defaults. To take IDs first, call streams_hold(stream) before nextval, '
                || 'in the same transaction. To restore rows: SET LOCAL {MAINTENANCE} = on.';
    END IF;
    RETURN NULL;
END
"""

#: AFTER INSERT FOR EACH ROW of a partitioned table, if the transaction holds nothing below the ID. Partitions that are made later
#: get this trigger by themselves. They do not get those for a statement.
_GUARD_ROW = f"""
BEGIN
    IF NOT {_APPLIES} AND NOT (coalesce(current_setting('{MAINTENANCE}', true), '') = 'on'
            AND has_table_privilege(coalesce(pg_partition_root(TG_RELID)::oid, TG_RELID), 'UPDATE, DELETE')) THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'Partition ' || TG_TABLE_NAME || ': a fact is refused, because nothing holds its stream.',
            HINT = 'Insert into the partitioned table, or run for the new partition: SELECT streams_hold_table(...).';
    END IF;
    RETURN NULL;
END
"""

#: BEFORE UPDATE OR DELETE FOR EACH ROW, or BEFORE UPDATE OF ID and writer, and BEFORE TRUNCATE. Argument: the stream.
_REFUSE = f"""
BEGIN
    IF coalesce(current_setting('{MAINTENANCE}', true), '') <> 'on' AND NOT {_APPLIES} THEN
        RAISE EXCEPTION USING ERRCODE = 'restrict_violation',
            MESSAGE = 'Table ' || TG_TABLE_NAME || ': ' || TG_OP || ' is refused. Its rows are facts of the stream ' || TG_ARGV[0]
                || ', and readers may have read them.',
            HINT = 'Append another fact with the present state. To trim: manage.py purge stream ' || TG_ARGV[0]
                || ' --keep 30d. To change facts that no reader has read: SET LOCAL {MAINTENANCE} = on.';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
"""

#: One row for each stream: what was given out, the linear position, and the lowest bound of each class with open appends.
#: ``bounds`` are signed distances modulo 2^40: a bound may lie above ``given``, which was read before it. Locks of all sessions
#: and of prepared transactions count, whoever holds them.
_LOOK = """
DECLARE
    numbers int[];
    streams text[];
    values_given bigint[];
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
            MESSAGE = 'A look at streams needs READ COMMITTED. A transaction at ' || current_setting('transaction_isolation')
                || ' reads rows as they were before the look, so it would miss facts.',
            HINT = 'Look outside of this transaction, or begin it with: BEGIN ISOLATION LEVEL READ COMMITTED';
    ELSIF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'A look at streams needs the primary: a standby does not see its locks.',
            HINT = 'Read the stored positions on a standby.';
    END IF;
    -- Statement 1: what was given out, each value under the lock of its sequence.
    SELECT array_agg(h.number), array_agg(h.stream), array_agg(coalesce(pg_sequence_last_value(h.sequence),
                                                                   {schema}.streams_given(h.sequence)))
      INTO numbers, streams, values_given
      FROM {schema}.streams_held h JOIN pg_sequence s ON s.seqrelid = h.sequence
     WHERE names IS NULL OR h.stream = ANY (names);
    IF names IS NOT NULL AND NOT names <@ coalesce(streams, '{}') THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_object',
            MESSAGE = 'Not every one of these streams has holds: ' || array_to_string(names, ', '),
            HINT = 'Run: manage.py migrate';
    END IF;
    -- Statement 2, which begins after statement 1 has ended: who is open.
    RETURN QUERY
    SELECT o.name, o.given_out, least(o.given_out, min(o.bound)),
           coalesce(array_agg(o.class) FILTER (WHERE o.class IS NOT NULL), '{}'),
           coalesce(array_agg(o.bound) FILTER (WHERE o.class IS NOT NULL), '{}')
      FROM (SELECT g.name, g.given_out, l.class,
                   min(g.given_out + ((l.low - g.given_out + 549755813888) & 1099511627775) - 549755813888) AS bound
              FROM unnest(numbers, streams, values_given) AS g (number, name, given_out)
              LEFT JOIN (SELECT (k.classid::bigint >> 20)::int AS number, (k.classid::bigint >> 8 & 4095)::int AS class,
                                (k.classid::bigint & 255) << 32 | k.objid::bigint AS low
                           FROM pg_locks k
                          WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.mode = 'ShareLock'
                            AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) AS l
                     ON l.number = g.number
             GROUP BY g.name, g.given_out, l.class) AS o
     GROUP BY o.name, o.given_out;
END
"""

#: Who holds a stream back. A prepared transaction has no process: it is found by the lock that it holds
#: on its own number.
_HOLDERS = f"""
SELECT h.stream, b.bound, a.pid, p.gid AS prepared, coalesce(a.xact_start, p.prepared) AS since, a.state,
       coalesce(a.usename, p.owner) AS role, a.application_name AS application, host(a.client_addr) AS client,
       a.query AS statement, b.class
  FROM pg_catalog.pg_locks k
  JOIN {{schema}}.streams_held h ON h.number = k.classid::bigint >> 20
  JOIN pg_catalog.pg_sequence s ON s.seqrelid = h.sequence
  LEFT JOIN LATERAL (SELECT coalesce(pg_sequence_last_value(h.sequence), {{schema}}.streams_given(h.sequence)) AS given
                      WHERE has_sequence_privilege(h.sequence, 'USAGE, SELECT')
                        AND NOT {is_altered_sql("h.sequence")}) AS g ON true
 CROSS JOIN LATERAL (SELECT (k.classid::bigint & 255) << 32 | k.objid::bigint AS low) AS l
 CROSS JOIN LATERAL (SELECT coalesce(g.given + ((l.low - g.given + 549755813888) & 1099511627775) - 549755813888, l.low) AS bound,
                            (k.classid::bigint >> 8 & 4095)::int AS class) AS b
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
  LEFT JOIN pg_catalog.pg_locks t ON k.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid' AND t.granted
        AND t.mode = 'ExclusiveLock' AND t.virtualtransaction = k.virtualtransaction
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = t.transactionid
 WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.mode = 'ShareLock'
   AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
"""

#: Temporary objects last: where a path does not name them, they come first. A role's temporary table ``pg_locks`` would hide all
#: holds from a look in its session, and its temporary types and views would call its functions with the owner's rights.
_PATH = "pg_catalog, pg_temp"

#: The table and all that take rows for it: its partitions, and the tables that inherit from it.
_TREE = """
    WITH RECURSIVE tree (t) AS (
        SELECT facts::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.t)
    SELECT c.oid::regclass AS facts, c.relkind = 'p' AS partitioned, c.relispartition AS partition, c.relkind
      FROM tree JOIN pg_class c ON c.oid = tree.t
"""

#: Makes the function that guards tables with these columns of ID and writer, or replaces an older one. Returns its name.
_MAKE_GUARD = f"""
DECLARE
    name text := 'streams_guard_' || left(md5(id || ' ' || writer), 8);
BEGIN
    EXECUTE replace(replace($guard$CREATE OR REPLACE FUNCTION {{schema}}.$guard$ || name || $guard$() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = {_PATH} AS $body${_GUARD}$body$$guard$,
        '{{id}}', quote_ident(id)), '{{writer}}', quote_ident(writer));
    -- Who may call it can make a trigger of it, and the looker reads the tables that have one.
    EXECUTE 'REVOKE EXECUTE ON FUNCTION {{schema}}.' || name || '() FROM PUBLIC';
    RETURN name;
END
"""

#: Makes a table one of a stream's. May be called again, such as for a new partition of the table. Rows of a table that is not
#: ``fixed`` may be deleted, and changed, but for their ID and writer.
_HOLD_TABLE = f"""
DECLARE
    held {{schema}}.streams_held;
    kept pg_sequence;
    part record;
    arguments text;
    suffix text;
    guard text := {{schema}}.streams_make_guard(id, writer);
    signed text := CASE WHEN backward THEN '(- NEW.' || quote_ident(id) || ')' ELSE 'NEW.' || quote_ident(id) END;
BEGIN
    SELECT s.* INTO kept FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
     WHERE s.seqrelid = source AND c.relpersistence = 'p';
    IF NOT FOUND OR kept.seqcache <> 1 OR kept.seqcycle OR kept.seqincrement < 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_object_definition',
            MESSAGE = 'Stream ' || name || ': the sequence ' || source || ' must be logged, with CACHE 1, NO CYCLE and a '
                || 'positive increment. Otherwise an ID may come that lies below an earlier bound.',
            HINT = 'ALTER SEQUENCE ' || source || ' CACHE 1 NO CYCLE';
    END IF;
    -- Two installs at once would choose the same number. Another site may be in another schema of this database. A table that has
    -- the triggers already, and no row here, was loaded without data: its stream gets its number again.
    PERFORM pg_advisory_xact_lock(hashtextextended('streams_held', 0));
    SELECT * INTO held FROM {{schema}}.streams_held h WHERE h.stream = name;
    IF NOT FOUND THEN
        INSERT INTO {{schema}}.streams_held (number, stream, sequence, backward)
        SELECT n, name, source, backward FROM generate_series(1, 4095) AS n
          LEFT JOIN (SELECT split_part(g.args, '\\000', 1)::int AS number, bool_or(
                         g.tgrelid = facts AND to_regclass(split_part(g.args, '\\000', 2)) = source
                         AND split_part(g.args, '\\000', 3) = CASE WHEN backward THEN '-1' ELSE '1' END) AS own
                       FROM (SELECT tgrelid, tgname, encode(tgargs, 'escape') AS args FROM pg_trigger) AS g
                      WHERE g.tgname ~ '^streams_(hold|guard)_[0-9]+$' GROUP BY 1) AS used ON used.number = n
         WHERE coalesce(used.own, true) AND n NOT IN (SELECT h.number FROM {{schema}}.streams_held h)
         ORDER BY used.number IS NULL, n LIMIT 1 RETURNING * INTO STRICT held;
    ELSIF held.sequence <> source AND EXISTS (SELECT FROM pg_sequence WHERE seqrelid = held.sequence) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_object_definition',
            MESSAGE = 'Stream ' || name || ' takes its IDs from ' || held.sequence || ', so its table ' || facts
                || ' cannot take them from ' || source || '.';
    ELSE
        UPDATE {{schema}}.streams_held h SET sequence = source, backward = streams_hold_table.backward
         WHERE h.number = held.number;
    END IF;
    SELECT format('%L, %L', held.number, format('%I.%I', n.nspname, c.relname)) INTO arguments
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = source;
    suffix := '_' || held.number;
    FOR part IN {_TREE} LOOP
        IF part.relkind NOT IN ('r', 'p') THEN
            RAISE EXCEPTION USING ERRCODE = 'wrong_object_type',
                MESSAGE = 'Stream ' || name || ': ' || part.facts || ' is no ordinary table, so nothing would hold its appends.';
        END IF;
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION {{schema}}.streams_hold(%s%s)', 'streams_hold' || suffix, part.facts, arguments,
            CASE WHEN part.partition OR part.partitioned THEN ', ''rows''' ELSE '' END);
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT '
            'EXECUTE FUNCTION {{schema}}.%I(%s, %L, %L, %L%s)', 'streams_guard' || suffix, part.facts, guard, arguments,
            CASE WHEN backward THEN -1 ELSE 1 END, id, writer, CASE WHEN shared THEN ', ''shared''' ELSE '' END);
        EXECUTE format('CREATE OR REPLACE TRIGGER streams_refuse_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION {{schema}}.streams_refuse(%L)', part.facts, name);
        EXECUTE format('ALTER TABLE ONLY %1$s ENABLE ALWAYS TRIGGER %2$I, ENABLE ALWAYS TRIGGER %3$I, '
            'ENABLE ALWAYS TRIGGER streams_refuse_truncate', part.facts, 'streams_hold' || suffix, 'streams_guard' || suffix);
        IF NOT part.partition THEN  -- a partition has the triggers for a row from its parent
            EXECUTE format('CREATE OR REPLACE TRIGGER streams_refuse BEFORE %s ON %s FOR EACH ROW '
                'EXECUTE FUNCTION {{schema}}.streams_refuse(%L)', CASE WHEN fixed THEN 'UPDATE OR DELETE'
                    ELSE format('UPDATE OF %I, %I', id, writer) END, part.facts, name);
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER streams_refuse', part.facts);
        END IF;
        IF part.partitioned AND NOT part.partition THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW WHEN ((coalesce(%s <= nullif('
                'current_setting(%L, true), '''')::bigint, true) OR nullif(current_setting(%L, true), '''') <> NEW.%I '
                'OR current_setting(%L, true) IS DISTINCT FROM pg_current_xact_id()::text)%s) '
                'EXECUTE FUNCTION {{schema}}.streams_guard_row()',
                'streams_guard_row' || suffix, part.facts, signed, 'streams.held' || held.number,
                'streams.held' || held.number || '_writer', writer, 'streams.held' || held.number || '_transaction',
                CASE WHEN shared THEN ' AND coalesce(' || signed || ' >= 0, true)' ELSE '' END);
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', part.facts, 'streams_guard_row' || suffix);
        END IF;
        IF defaults THEN
            EXECUTE format('ALTER TABLE ONLY %s ALTER %I SET DEFAULT %snextval(%L), ALTER %I SET DEFAULT coalesce(nullif('
                'current_setting(%L, true), ''''), %L)', part.facts, id, CASE WHEN backward THEN '-' ELSE '' END,
                (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE c.oid = source), writer, '{WRITER}', '{DEFAULT_WRITER}');
        END IF;
    END LOOP;
    RETURN held.number;
END
"""

#: Takes back what ``streams_hold_table`` made. The stream's row goes with its last table.
_RELEASE_TABLE = f"""
DECLARE
    part record;
    found record;
    held int := (SELECT h.number FROM {{schema}}.streams_held h WHERE h.stream = name);
    source regclass := (SELECT h.sequence FROM {{schema}}.streams_held h WHERE h.stream = name);
BEGIN
    FOR part IN {_TREE} LOOP
        FOR found IN SELECT g.tgname FROM pg_trigger g WHERE g.tgrelid = part.facts AND g.tgparentid = 0 AND (
            g.tgname IN ('streams_hold_' || held, 'streams_guard_' || held, 'streams_guard_row_' || held)
            OR g.tgname IN ('streams_refuse', 'streams_refuse_truncate') AND NOT EXISTS (
                SELECT FROM pg_trigger o WHERE o.tgrelid = part.facts AND o.tgname ~ '^streams_hold_[0-9]+$'
                   AND o.tgname <> 'streams_hold_' || held)) LOOP
            EXECUTE format('DROP TRIGGER %I ON %s', found.tgname, part.facts);
        END LOOP;
        -- The defaults go as well: those of the stream's sequence, and that of the writer with the last stream of the table.
        FOR found IN SELECT a.attname FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
            WHERE d.adrelid = part.facts AND (EXISTS (
                SELECT FROM pg_depend n WHERE n.classid = 'pg_attrdef'::regclass AND n.objid = d.oid
                   AND n.refclassid = 'pg_class'::regclass AND n.refobjid = source)
                OR pg_get_expr(d.adbin, d.adrelid) ~ '{WRITER}' AND NOT EXISTS (
                    SELECT FROM pg_trigger g WHERE g.tgrelid = part.facts AND g.tgname ~ '^streams_hold_[0-9]+$')) LOOP
            EXECUTE format('ALTER TABLE ONLY %s ALTER %I DROP DEFAULT', part.facts, found.attname);
        END LOOP;
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
                    WHERE g.tgname = 'streams_hold_' || held AND quote_ident(n.nspname) = '{{schema}}') THEN
        DELETE FROM {{schema}}.streams_held h WHERE h.number = held;
    END IF;
END
"""

_INVOKER = f"LANGUAGE plpgsql SET search_path = {_PATH}"
_DEFINER = f"LANGUAGE plpgsql SECURITY DEFINER SET search_path = {_PATH}"
#: Signature -> (result and attributes, body). ``{schema}`` is the site's schema.
_FUNCTIONS: Mapping[str, tuple[str, str]] = {
    "streams_given(source regclass)": (f"RETURNS bigint STRICT {_DEFINER}", _GIVEN),
    "streams_hold()": (f"RETURNS trigger {_DEFINER}", _HOLD),
    "streams_hold(name text)": (f"RETURNS bigint {_DEFINER}", _HOLD_BY_NAME),
    "streams_guard_row()": (f"RETURNS trigger {_INVOKER}", _GUARD_ROW),
    "streams_refuse()": (f"RETURNS trigger {_INVOKER}", _REFUSE),
    "streams_look(names text[] DEFAULT NULL)": (
        'RETURNS TABLE (stream text, given bigint, "position" bigint, classes int[], bounds bigint[]) '
        f"VOLATILE {_DEFINER} SET lock_timeout = '250ms'",
        _LOOK,
    ),
    "streams_make_guard(id text, writer text)": (
        f"RETURNS text {_INVOKER}",
        _MAKE_GUARD,
    ),
    "streams_hold_table(facts regclass, name text, source regclass, id text DEFAULT 'stream_id', writer text DEFAULT "
    "'instance_name', backward boolean DEFAULT false, shared boolean DEFAULT false, defaults boolean DEFAULT true, "
    "fixed boolean DEFAULT true)": (
        f"RETURNS int {_INVOKER}",
        _HOLD_TABLE,
    ),
    "streams_release_table(facts regclass, name text)": (
        f"RETURNS void {_INVOKER}",
        _RELEASE_TABLE,
    ),
}
_TABLE = """
CREATE TABLE IF NOT EXISTS {schema}.streams_held (
    number int PRIMARY KEY CHECK (number BETWEEN 1 AND 4095), stream text NOT NULL UNIQUE, sequence regclass NOT NULL,
    backward boolean NOT NULL);
COMMENT ON TABLE {schema}.streams_held IS 'The streams whose appends hold a lock while they are open, by the number in its key';
"""


#: Everything that decides whether facts can be lost.
_DECIDING = (
    "streams_given(source regclass)",
    "streams_hold()",
    "streams_hold(name text)",
    "streams_guard_row()",
    "streams_refuse()",
)


def _create(signature: str) -> str:
    attributes, body = _FUNCTIONS[signature]
    return f"CREATE OR REPLACE FUNCTION {{schema}}.{signature} {attributes} AS $streams${body}$streams$;\n"


#: All statements, with ``{schema}`` for the schema in which they are run.
_ALL = (
    _TABLE
    + "".join(map(_create, _FUNCTIONS))
    + f"CREATE OR REPLACE VIEW {{schema}}.streams_holders AS {_HOLDERS};\n"
    # Guards of an older version are replaced, too.
    + "DO $guards$ BEGIN PERFORM {schema}.streams_make_guard(a.part[4], a.part[5]) FROM (SELECT DISTINCT "
    + "string_to_array(encode(g.tgargs, 'escape'), '\\000') AS part FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid "
    + "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE quote_ident(n.nspname) = '{schema}' "
    + "AND p.proname ~ '^streams_guard_[0-9a-f]{8}$') AS a; END $guards$;\n"
    # So are the guards for the rows of partitioned tables, whose condition is of an older version.
    + "DO $rows$ BEGIN PERFORM {schema}.streams_hold_table(g.tgrelid, h.stream, h.sequence, a.part[4], a.part[5], "
    + "a.part[3] = '-1', a.part[6] = 'shared', false, (r.tgtype & 8) <> 0) FROM {schema}.streams_held h "
    + "JOIN pg_trigger g ON g.tgname = 'streams_guard_row_' || h.number AND g.tgparentid = 0 "
    + "JOIN pg_trigger s ON s.tgrelid = g.tgrelid AND s.tgname = 'streams_guard_' || h.number "
    + "JOIN pg_trigger r ON r.tgrelid = g.tgrelid AND r.tgname = 'streams_refuse' "
    + "JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace "
    + "CROSS JOIN LATERAL (SELECT string_to_array(encode(s.tgargs, 'escape'), '\\000') AS part) AS a "
    + "WHERE quote_ident(n.nspname) = '{schema}' AND pg_get_triggerdef(g.oid) !~ '_transaction'; END $rows$;\n"
    # A role that may only connect, or make tables of its own, must not hold back a stream. Who inserts needs no right to these.
    + "REVOKE EXECUTE ON FUNCTION {schema}.streams_hold(), {schema}.streams_hold(text) FROM PUBLIC;\n"
)
_RUN = "EXECUTE replace($install${}$install$, '{{schema}}', quote_ident(current_schema()));"

#: Installs the table and the functions, or replaces functions of an older version.
FUNCTIONS = f"DO $do$ BEGIN {_RUN.format(_ALL)} END $do$"
#: Installs the table and the functions unless they are there. For migrations of other apps, which may run before those of
#: ``streams``.
INSTALL = f"""DO $do$ BEGIN
IF to_regclass(quote_ident(current_schema()) || '.streams_held') IS NULL THEN {_RUN.format(_ALL)} END IF;
END $do$"""
#: Removes what ``FUNCTIONS`` installs. Fails while a table has triggers that need it.
DROP = """DO $do$
DECLARE
    found record;
BEGIN
    DROP VIEW IF EXISTS streams_holders;
    FOR found IN SELECT p.oid::regprocedure AS called FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
        AND p.proname ~ '^streams_(given|hold|guard|make_guard|refuse|look|release_table)' LOOP
        EXECUTE 'DROP FUNCTION ' || found.called;
    END LOOP;
    DROP TABLE IF EXISTS streams_held;
END $do$"""


@cache
def bodies() -> Mapping[str, str]:
    """Returns ``{name: body}`` of the functions that decide whether facts can be lost, as this version has them.

    ``{schema}`` in a body is the schema of the site, and ``{id}`` and ``{writer}`` are columns of the table.
    """
    look = next(signature for signature in _FUNCTIONS if signature.startswith("streams_look("))
    found = {
        signature.replace("name text", "text").replace("source regclass", "regclass"): _FUNCTIONS[signature][1]
        for signature in _DECIDING
    }
    return MappingProxyType({**found, "streams_look(text[])": _FUNCTIONS[look][1], "streams_guard": _GUARD})
