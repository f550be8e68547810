"""The position of the statistics becomes the cursors of a named reader, which is listed until it is forgotten.

Older processes: a pipeline that runs stores no cursors, and its row stays; what is written for it is read by newer ones only.
"""

from django.db import migrations

#: A pipeline of the earlier version that runs now stores no cursors. It gets them when the new version starts it.
_RUNS = """
SELECT FROM streams_reader WHERE key = 'spark:pipeline statistics' AND closed_at IS NULL
  AND heartbeat_at > clock_timestamp() - interval '1 minute'
"""
_CURSORS = f"""
INSERT INTO streams_storedcursor (reader, stream, base, entries, moved_at, seen_at, ended_at)
SELECT 'pipeline statistics', reached.stream, 0,
       (SELECT coalesce(jsonb_object_agg(writer, at), '{{}}') FROM jsonb_each(reached.vector) AS one (writer, at)
        WHERE at::bigint > 0),
       applied_at, applied_at, applied_at
FROM pipeline_batchledger, jsonb_each(offsets) AS reached (stream, vector)
WHERE query = 'statistics' AND NOT EXISTS ({_RUNS})
ON CONFLICT (reader, stream) DO NOTHING
"""
_OLD_ROW = f"DELETE FROM streams_reader WHERE key = 'spark:pipeline statistics' AND NOT EXISTS ({_RUNS})"


class Migration(migrations.Migration):
    """Cursors at the positions in the ledger."""

    dependencies = [("pipeline", "0009_pack_requests"), ("streams", "0022_asked_retries")]
    operations = [
        migrations.RunSQL(_CURSORS, migrations.RunSQL.noop),
        migrations.RunSQL(_OLD_ROW, migrations.RunSQL.noop),
    ]
