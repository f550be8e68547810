"""Guards refuse more that readers would miss.

Facts without an ID or a writer, the ID 0 in a table of two streams, and facts of a partition without triggers of its own in a
session in which somebody set what holds remember.

Older processes: they go on, as none of them appends such facts.
"""

from django.db import migrations

FUNCTIONS = r"""DO $do$ BEGIN EXECUTE replace($install$
CREATE TABLE IF NOT EXISTS {schema}.streams_held (
    number int PRIMARY KEY CHECK (number BETWEEN 1 AND 4095), stream text NOT NULL UNIQUE, sequence regclass NOT NULL,
    backward boolean NOT NULL);
COMMENT ON TABLE {schema}.streams_held IS 'The streams whose appends hold a lock while they are open, by the number in its key';
CREATE OR REPLACE FUNCTION {schema}.streams_given(source regclass) RETURNS bigint STRICT LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $streams$
DECLARE
    given bigint;
BEGIN
    PERFORM pg_sequence_last_value(source);
    EXECUTE 'SELECT last_value - 1 FROM ' || source INTO given;
    RETURN coalesce(pg_sequence_last_value(source), given);
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_hold() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $streams$
DECLARE
    number bigint := TG_ARGV[0];
    source regclass := TG_ARGV[1];

    writer text := nullif(current_setting('streams.writer', true), '');
    class bigint := CASE WHEN writer IS NULL THEN 0 ELSE 1 + mod(('x' || left(encode(sha256(convert_to(writer, 'UTF8')), 'hex'), 8))::bit(32)::bigint, 4095) END;
    slot text := 'streams.held' || number || '_' || class;
    held bigint := nullif(current_setting(slot, true), '');
    bound bigint := pg_sequence_last_value(source);

BEGIN

    IF bound IS NULL THEN  -- the sequence gave out no ID yet
        bound := {schema}.streams_given(source);
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
        IF TG_NARGS > 2 THEN slot := set_config('streams.held' || number,
                least(bound, nullif(current_setting('streams.held' || number, true), '')::bigint)::text, true);
            slot := set_config('streams.held' || number || '_writer', coalesce(writer, ''), true);
            slot := set_config('streams.held' || number || '_transaction', pg_current_xact_id()::text, true); END IF;
    EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
        RAISE;
    END;

    RETURN NULL;
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_hold(name text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $streams$
DECLARE
    number bigint := (SELECT h.number FROM {schema}.streams_held h WHERE h.stream = name);
    source regclass := (SELECT h.sequence FROM {schema}.streams_held h WHERE h.stream = name);

    writer text := nullif(current_setting('streams.writer', true), '');
    class bigint := CASE WHEN writer IS NULL THEN 0 ELSE 1 + mod(('x' || left(encode(sha256(convert_to(writer, 'UTF8')), 'hex'), 8))::bit(32)::bigint, 4095) END;
    slot text := 'streams.held' || number || '_' || class;
    held bigint := nullif(current_setting(slot, true), '');
    bound bigint := pg_sequence_last_value(source);

BEGIN

    IF bound IS NULL THEN  -- the sequence gave out no ID yet
        bound := {schema}.streams_given(source);
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
        slot := set_config('streams.held' || number,
                least(bound, nullif(current_setting('streams.held' || number, true), '')::bigint)::text, true);
            slot := set_config('streams.held' || number || '_writer', coalesce(writer, ''), true);
            slot := set_config('streams.held' || number || '_transaction', pg_current_xact_id()::text, true);
    EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
        RAISE;
    END;

    RETURN bound;
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_guard_row() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $streams$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_stat_get_subscription(NULL) WHERE pid = pg_backend_pid()) AND NOT (coalesce(current_setting('streams.maintenance', true), '') = 'on'
            AND has_table_privilege(coalesce(pg_partition_root(TG_RELID)::oid, TG_RELID), 'UPDATE, DELETE')) THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'Partition ' || TG_TABLE_NAME || ': a fact is refused, because nothing holds its stream.',
            HINT = 'Insert into the partitioned table, or run for the new partition: SELECT streams_hold_table(...).';
    END IF;
    RETURN NULL;
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_refuse() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $streams$
BEGIN
    IF coalesce(current_setting('streams.maintenance', true), '') <> 'on' AND NOT EXISTS (SELECT FROM pg_stat_get_subscription(NULL) WHERE pid = pg_backend_pid()) THEN
        RAISE EXCEPTION USING ERRCODE = 'restrict_violation',
            MESSAGE = 'Table ' || TG_TABLE_NAME || ': ' || TG_OP || ' is refused. Its rows are facts of the stream ' || TG_ARGV[0]
                || ', and readers may have read them.',
            HINT = 'Append another fact with the present state. To trim: manage.py purge stream ' || TG_ARGV[0]
                || ' --keep 30d. To change facts that no reader has read: SET LOCAL streams.maintenance = on.';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_look(names text[] DEFAULT NULL) RETURNS TABLE (stream text, given bigint, "position" bigint, classes int[], bounds bigint[]) VOLATILE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' AS $streams$
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
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_make_guard(id text, writer text) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $streams$
DECLARE
    name text := 'streams_guard_' || left(md5(id || ' ' || writer), 8);
BEGIN
    EXECUTE replace(replace($guard$CREATE OR REPLACE FUNCTION {schema}.$guard$ || name || $guard$() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_variable
DECLARE
    sign bigint := TG_ARGV[2];
    shared boolean := TG_NARGS > 5;
    writer text := nullif(current_setting('streams.writer', true), '');
    class bigint := CASE WHEN writer IS NULL THEN 0 ELSE 1 + mod(('x' || left(encode(sha256(convert_to(writer, 'UTF8')), 'hex'), 8))::bit(32)::bigint, 4095) END;
    bound bigint := coalesce(
        nullif(current_setting('streams.held' || TG_ARGV[0] || '_' || class, true), '')::bigint, 9223372036854775807);
    given bigint := coalesce(pg_sequence_last_value(TG_ARGV[1]::regclass), 0);
    -- Null if the session has named no writer.
    unfit boolean := length(writer) NOT BETWEEN 1 AND 200 OR writer ~ '[[:space:][:cntrl:]]';
    wrong record;
BEGIN
    -- No reader would find a row without an ID, or without a writer. The ID 0 belongs to neither of two streams of one table.
    SELECT f.{id} AS id, f.{writer} AS writer,
           f.{writer} IS NULL OR coalesce(unfit, length(f.{writer}) NOT BETWEEN 1 AND 200 OR f.{writer} ~ '[[:space:][:cntrl:]]') AS unfit
      INTO wrong FROM fresh f
     WHERE (coalesce(sign * f.{id} <= bound OR sign * f.{id} > given, true) OR f.{writer} <> writer
            OR f.{writer} IS NULL OR coalesce(unfit, length(f.{writer}) NOT BETWEEN 1 AND 200 OR f.{writer} ~ '[[:space:][:cntrl:]]'))
       AND (NOT shared OR coalesce(sign * f.{id} >= 0, true)) LIMIT 1;
    IF FOUND AND wrong.unfit THEN  -- whatever the maintenance
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'Table ' || TG_TABLE_NAME || ': ' || quote_nullable(left(wrong.writer, 100))
                || ' cannot be the name of a writer.',
            HINT = 'Set streams.writer to 1 to 200 characters without blanks.';
    ELSIF FOUND AND NOT EXISTS (SELECT FROM pg_stat_get_subscription(NULL) WHERE pid = pg_backend_pid()) AND NOT (coalesce(current_setting('streams.maintenance', true), '') = 'on' AND has_table_privilege(
            coalesce(nullif(current_setting('role'), 'none'), session_user)::name, TG_RELID, 'UPDATE, DELETE')) THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = 'Table ' || TG_TABLE_NAME || ': the fact ' || coalesce(wrong.id::text, 'without ID') || ' of writer '
                || wrong.writer || ' is refused. This transaction may append as ' || coalesce(writer, 'any writer')
                || ' the IDs that it takes above '
                || CASE WHEN bound = 9223372036854775807 THEN '(no hold)' ELSE bound::text END || ', and ' || given
                || ' was the last ID given out.',
            HINT = 'Leave the ID and the writer to their defaults. To take IDs first, call streams_hold(stream) before nextval, '
                || 'in the same transaction. To restore rows: SET LOCAL streams.maintenance = on.';
    END IF;
    RETURN NULL;
END
$body$$guard$,
        '{id}', quote_ident(id)), '{writer}', quote_ident(writer));
    -- Who may call it can make a trigger of it, and the looker reads the tables that have one.
    EXECUTE 'REVOKE EXECUTE ON FUNCTION {schema}.' || name || '() FROM PUBLIC';
    RETURN name;
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_hold_table(facts regclass, name text, source regclass, id text DEFAULT 'stream_id', writer text DEFAULT 'instance_name', backward boolean DEFAULT false, shared boolean DEFAULT false, defaults boolean DEFAULT true, fixed boolean DEFAULT true) RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $streams$
DECLARE
    held {schema}.streams_held;
    kept pg_sequence;
    part record;
    arguments text;
    suffix text;
    guard text := {schema}.streams_make_guard(id, writer);
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
    SELECT * INTO held FROM {schema}.streams_held h WHERE h.stream = name;
    IF NOT FOUND THEN
        INSERT INTO {schema}.streams_held (number, stream, sequence, backward)
        SELECT n, name, source, backward FROM generate_series(1, 4095) AS n
          LEFT JOIN (SELECT split_part(g.args, '\000', 1)::int AS number, bool_or(
                         g.tgrelid = facts AND to_regclass(split_part(g.args, '\000', 2)) = source
                         AND split_part(g.args, '\000', 3) = CASE WHEN backward THEN '-1' ELSE '1' END) AS own
                       FROM (SELECT tgrelid, tgname, encode(tgargs, 'escape') AS args FROM pg_trigger) AS g
                      WHERE g.tgname ~ '^streams_(hold|guard)_[0-9]+$' GROUP BY 1) AS used ON used.number = n
         WHERE coalesce(used.own, true) AND n NOT IN (SELECT h.number FROM {schema}.streams_held h)
         ORDER BY used.number IS NULL, n LIMIT 1 RETURNING * INTO STRICT held;
    ELSIF held.sequence <> source AND EXISTS (SELECT FROM pg_sequence WHERE seqrelid = held.sequence) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_object_definition',
            MESSAGE = 'Stream ' || name || ' takes its IDs from ' || held.sequence || ', so its table ' || facts
                || ' cannot take them from ' || source || '.';
    ELSE
        UPDATE {schema}.streams_held h SET sequence = source, backward = streams_hold_table.backward
         WHERE h.number = held.number;
    END IF;
    SELECT format('%L, %L', held.number, format('%I.%I', n.nspname, c.relname)) INTO arguments
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = source;
    suffix := '_' || held.number;
    FOR part IN 
    WITH RECURSIVE tree (t) AS (
        SELECT facts::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.t)
    SELECT c.oid::regclass AS facts, c.relkind = 'p' AS partitioned, c.relispartition AS partition, c.relkind
      FROM tree JOIN pg_class c ON c.oid = tree.t
 LOOP
        IF part.relkind NOT IN ('r', 'p') THEN
            RAISE EXCEPTION USING ERRCODE = 'wrong_object_type',
                MESSAGE = 'Stream ' || name || ': ' || part.facts || ' is no ordinary table, so nothing would hold its appends.';
        END IF;
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION {schema}.streams_hold(%s%s)', 'streams_hold' || suffix, part.facts, arguments,
            CASE WHEN part.partition OR part.partitioned THEN ', ''rows''' ELSE '' END);
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT '
            'EXECUTE FUNCTION {schema}.%I(%s, %L, %L, %L%s)', 'streams_guard' || suffix, part.facts, guard, arguments,
            CASE WHEN backward THEN -1 ELSE 1 END, id, writer, CASE WHEN shared THEN ', ''shared''' ELSE '' END);
        EXECUTE format('CREATE OR REPLACE TRIGGER streams_refuse_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION {schema}.streams_refuse(%L)', part.facts, name);
        EXECUTE format('ALTER TABLE ONLY %1$s ENABLE ALWAYS TRIGGER %2$I, ENABLE ALWAYS TRIGGER %3$I, '
            'ENABLE ALWAYS TRIGGER streams_refuse_truncate', part.facts, 'streams_hold' || suffix, 'streams_guard' || suffix);
        IF NOT part.partition THEN  -- a partition has the triggers for a row from its parent
            EXECUTE format('CREATE OR REPLACE TRIGGER streams_refuse BEFORE %s ON %s FOR EACH ROW '
                'EXECUTE FUNCTION {schema}.streams_refuse(%L)', CASE WHEN fixed THEN 'UPDATE OR DELETE'
                    ELSE format('UPDATE OF %I, %I', id, writer) END, part.facts, name);
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER streams_refuse', part.facts);
        END IF;
        IF part.partitioned AND NOT part.partition THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW WHEN ((coalesce(%s <= nullif('
                'current_setting(%L, true), '''')::bigint, true) OR nullif(current_setting(%L, true), '''') <> NEW.%I '
                'OR current_setting(%L, true) IS DISTINCT FROM pg_current_xact_id()::text)%s) '
                'EXECUTE FUNCTION {schema}.streams_guard_row()',
                'streams_guard_row' || suffix, part.facts, signed, 'streams.held' || held.number,
                'streams.held' || held.number || '_writer', writer, 'streams.held' || held.number || '_transaction',
                CASE WHEN shared THEN ' AND coalesce(' || signed || ' >= 0, true)' ELSE '' END);
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', part.facts, 'streams_guard_row' || suffix);
        END IF;
        IF defaults THEN
            EXECUTE format('ALTER TABLE ONLY %s ALTER %I SET DEFAULT %snextval(%L), ALTER %I SET DEFAULT coalesce(nullif('
                'current_setting(%L, true), ''''), %L)', part.facts, id, CASE WHEN backward THEN '-' ELSE '' END,
                (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE c.oid = source), writer, 'streams.writer', 'master');
        END IF;
    END LOOP;
    RETURN held.number;
END
$streams$;
CREATE OR REPLACE FUNCTION {schema}.streams_release_table(facts regclass, name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $streams$
DECLARE
    part record;
    found record;
    held int := (SELECT h.number FROM {schema}.streams_held h WHERE h.stream = name);
    source regclass := (SELECT h.sequence FROM {schema}.streams_held h WHERE h.stream = name);
BEGIN
    FOR part IN 
    WITH RECURSIVE tree (t) AS (
        SELECT facts::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.t)
    SELECT c.oid::regclass AS facts, c.relkind = 'p' AS partitioned, c.relispartition AS partition, c.relkind
      FROM tree JOIN pg_class c ON c.oid = tree.t
 LOOP
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
                OR pg_get_expr(d.adbin, d.adrelid) ~ 'streams.writer' AND NOT EXISTS (
                    SELECT FROM pg_trigger g WHERE g.tgrelid = part.facts AND g.tgname ~ '^streams_hold_[0-9]+$')) LOOP
            EXECUTE format('ALTER TABLE ONLY %s ALTER %I DROP DEFAULT', part.facts, found.attname);
        END LOOP;
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
                    WHERE g.tgname = 'streams_hold_' || held AND quote_ident(n.nspname) = '{schema}') THEN
        DELETE FROM {schema}.streams_held h WHERE h.number = held;
    END IF;
END
$streams$;
CREATE OR REPLACE VIEW {schema}.streams_holders AS 
SELECT h.stream, b.bound, a.pid, p.gid AS prepared, coalesce(a.xact_start, p.prepared) AS since, a.state,
       coalesce(a.usename, p.owner) AS role, a.application_name AS application, host(a.client_addr) AS client,
       a.query AS statement, b.class
  FROM pg_catalog.pg_locks k
  JOIN {schema}.streams_held h ON h.number = k.classid::bigint >> 20
  JOIN pg_catalog.pg_sequence s ON s.seqrelid = h.sequence
  LEFT JOIN LATERAL (SELECT coalesce(pg_sequence_last_value(h.sequence), {schema}.streams_given(h.sequence)) AS given
                      WHERE has_sequence_privilege(h.sequence, 'USAGE, SELECT')) AS g ON true
 CROSS JOIN LATERAL (SELECT (k.classid::bigint & 255) << 32 | k.objid::bigint AS low) AS l
 CROSS JOIN LATERAL (SELECT coalesce(g.given + ((l.low - g.given + 549755813888) & 1099511627775) - 549755813888, l.low) AS bound,
                            (k.classid::bigint >> 8 & 4095)::int AS class) AS b
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
  LEFT JOIN pg_catalog.pg_locks t ON k.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid' AND t.granted
        AND t.mode = 'ExclusiveLock' AND t.virtualtransaction = k.virtualtransaction
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = t.transactionid
 WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.mode = 'ShareLock'
   AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
;
DO $guards$ BEGIN PERFORM {schema}.streams_make_guard(a.part[4], a.part[5]) FROM (SELECT DISTINCT string_to_array(encode(g.tgargs, 'escape'), '\000') AS part FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace WHERE quote_ident(n.nspname) = '{schema}' AND p.proname ~ '^streams_guard_[0-9a-f]{8}$') AS a; END $guards$;
DO $rows$ BEGIN PERFORM {schema}.streams_hold_table(g.tgrelid, h.stream, h.sequence, a.part[4], a.part[5], a.part[3] = '-1', a.part[6] = 'shared', false, (r.tgtype & 8) <> 0) FROM {schema}.streams_held h JOIN pg_trigger g ON g.tgname = 'streams_guard_row_' || h.number AND g.tgparentid = 0 JOIN pg_trigger s ON s.tgrelid = g.tgrelid AND s.tgname = 'streams_guard_' || h.number JOIN pg_trigger r ON r.tgrelid = g.tgrelid AND r.tgname = 'streams_refuse' JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace CROSS JOIN LATERAL (SELECT string_to_array(encode(s.tgargs, 'escape'), '\000') AS part) AS a WHERE quote_ident(n.nspname) = '{schema}' AND pg_get_triggerdef(g.oid) !~ '_transaction'; END $rows$;
REVOKE EXECUTE ON FUNCTION {schema}.streams_hold(), {schema}.streams_hold(text) FROM PUBLIC;
$install$, '{schema}', quote_ident(current_schema())); END $do$"""


class Migration(migrations.Migration):
    dependencies = [("streams", "0026_appends_are_inserts")]

    operations = [migrations.RunSQL(FUNCTIONS, migrations.RunSQL.noop)]
