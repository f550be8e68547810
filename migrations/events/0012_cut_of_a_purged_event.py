"""Who has left a room sees nothing above their leave, though the event at which their cut begins was purged.

Older processes: the view has the columns that it had.
"""

from django.db import migrations

_VIEW = """
CREATE OR REPLACE VIEW events_roomaccess AS
SELECT m.state_key AS user_id, m.room_id, NOT (m.membership = 'join' OR (m.membership = 'leave' AND NOT coalesce((
  SELECT true FROM events_forgottenroom f
  WHERE f.user_id = m.state_key AND f.room_id = m.room_id AND f.event_id = m.event_id), false))) AS peeking, true AS recorded,
  cut.first AS cut, cut.depth AS cut_depth, NULL::bigint AS kept_since
FROM events_currentstate m
LEFT JOIN LATERAL (
  SELECT v.first, coalesce(e.topological_ordering, (
    SELECT own.topological_ordering FROM events_event own WHERE own.event_id = m.event_id)) AS depth
  FROM events_eventvisibility v LEFT JOIN events_event e ON e.stream_ordering = v.first
  WHERE v.room_id = m.room_id AND v.user_id = m.state_key AND v.kind = 'cut' ORDER BY v.first DESC LIMIT 1
) AS cut ON m.membership = 'leave' AND (m.membership = 'join' OR (m.membership = 'leave' AND NOT coalesce((
  SELECT true FROM events_forgottenroom f
  WHERE f.user_id = m.state_key AND f.room_id = m.room_id AND f.event_id = m.event_id), false)))
WHERE m.type = 'm.room.member' AND m.membership IS NOT NULL AND (
  (m.membership = 'join' OR (m.membership = 'leave' AND NOT coalesce((
    SELECT true FROM events_forgottenroom f
    WHERE f.user_id = m.state_key AND f.room_id = m.room_id AND f.event_id = m.event_id), false)))
  OR coalesce((SELECT true FROM events_eventvisibility v
    WHERE v.room_id = m.room_id AND v.user_id IS NULL AND v.kind = 'peekable' AND v.last IS NULL LIMIT 1), false))
"""


class Migration(migrations.Migration):
    dependencies = [("events", "0011_purged_rooms")]

    operations = [migrations.RunSQL(_VIEW, migrations.RunSQL.noop)]
