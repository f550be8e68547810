"""Finds the events that name an event as auth event, always by the index.

Older processes: do not call the function.
"""

from django.db import migrations

_NAMING = """
CREATE FUNCTION events_naming(wanted character varying[]) RETURNS TABLE (
  named character varying, naming character varying, naming_type character varying, naming_key character varying,
  naming_room character varying
) LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $naming$
BEGIN
RETURN QUERY SELECT asked.id, above.event_id, e.type, e.state_key, e.room_id
FROM unnest(wanted) AS asked (id) CROSS JOIN LATERAL (
    SELECT a.event_id FROM events_eventauth a WHERE a.auth_event_ids @> ARRAY[asked.id] LIMIT 500
) AS above LEFT JOIN events_event e ON e.event_id = above.event_id;
END $naming$
"""


class Migration(migrations.Migration):
    dependencies = [("events", "0016_index_of_auth_events")]

    operations = [migrations.RunSQL(_NAMING, "DROP FUNCTION events_naming(character varying[])")]
