"""A user's access to a room takes the same time however many rooms the user is in.

Older processes: the function has the columns that it had.
"""

from django.db import migrations

_FUNCTION = """
CREATE OR REPLACE FUNCTION events_access(asked_user text, asked_rooms text[]) RETURNS TABLE (
  out_room character varying, known boolean, readable boolean, out_peeking boolean, out_recorded boolean, out_cut bigint,
  out_cut_depth bigint, out_membership character varying, forgotten boolean, policy bytea
) LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $access$
BEGIN
RETURN QUERY
SELECT r.room_id, NOT (r.visibility_unresolved OR r.current_state_unresolved), a.user_id IS NOT NULL OR (
    m.event_id IS NULL AND EXISTS (SELECT FROM events_eventvisibility v
      WHERE v.room_id = r.room_id AND v.user_id IS NULL AND v.kind = 'peekable' AND v.last IS NULL)
  ), coalesce(a.peeking, true), EXISTS (
    SELECT FROM events_event e WHERE e.type = 'm.room.member' AND e.state_key = asked_user AND e.room_id = r.room_id
    OFFSET 0
  ), a.cut, a.cut_depth, m.membership, EXISTS (
    SELECT FROM events_forgottenroom f WHERE f.user_id = asked_user AND f.room_id = r.room_id AND f.event_id = m.event_id
  ), j.json
FROM unnest(asked_rooms) AS asked (room_id)
JOIN events_room r USING (room_id)
LEFT JOIN LATERAL (
    SELECT c.event_id, c.membership FROM events_currentstate c
    WHERE c.room_id = r.room_id AND c.type = 'm.room.member' AND c.state_key = asked_user OFFSET 0
) AS m ON true
LEFT JOIN LATERAL (
    SELECT * FROM events_roomaccess v WHERE v.room_id = r.room_id AND v.user_id = asked_user OFFSET 0
) AS a ON true
LEFT JOIN (
    events_currentstate p JOIN events_event pe ON pe.event_id = p.event_id AND pe.redacted_by IS NULL
    JOIN events_eventjson j ON j.event_id = p.event_id
) ON p.room_id = r.room_id AND p.type = 'm.room.retention' AND p.state_key = '';
END $access$
"""


class Migration(migrations.Migration):
    dependencies = [("events", "0012_cut_of_a_purged_event")]

    operations = [migrations.RunSQL(_FUNCTION, migrations.RunSQL.noop)]
