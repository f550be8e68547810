"""Who holds a stream back is shown, too, while somebody is altering the sequence of a stream.

Older processes: they read the same columns of the view.
"""

from django.db import migrations

VIEW = """DO $do$ BEGIN EXECUTE replace($install$CREATE OR REPLACE VIEW {schema}.streams_holders AS 
SELECT h.stream, b.bound, a.pid, p.gid AS prepared, coalesce(a.xact_start, p.prepared) AS since, a.state,
       coalesce(a.usename, p.owner) AS role, a.application_name AS application, host(a.client_addr) AS client,
       a.query AS statement, b.class
  FROM pg_catalog.pg_locks k
  JOIN {schema}.streams_held h ON h.number = k.classid::bigint >> 20
  JOIN pg_catalog.pg_sequence s ON s.seqrelid = h.sequence
  LEFT JOIN LATERAL (SELECT coalesce(pg_sequence_last_value(h.sequence), {schema}.streams_given(h.sequence)) AS given
                      WHERE has_sequence_privilege(h.sequence, 'USAGE, SELECT')
                        AND NOT h.sequence::oid = ANY (ARRAY(SELECT k.relation FROM pg_catalog.pg_locks k
WHERE k.locktype = 'relation' AND k.pid IS DISTINCT FROM pg_backend_pid()
  AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')))) AS g ON true
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
$install$, '{schema}', quote_ident(current_schema())); END $do$"""


class Migration(migrations.Migration):
    dependencies = [("streams", "0030_notices")]

    operations = [migrations.RunSQL(VIEW, migrations.RunSQL.noop)]
