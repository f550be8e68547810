"""Pages of rooms, and who may read them, as functions whose plans are kept."""

from django.db import migrations, models

_ACCESS = """
CREATE FUNCTION events_access(asked_user text, asked_rooms text[]) RETURNS TABLE (
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
  ), a.cut, a.cut_depth, m.membership, EXISTS (
    SELECT FROM events_forgottenroom f WHERE f.user_id = asked_user AND f.room_id = r.room_id AND f.event_id = m.event_id
  ), j.json
FROM unnest(asked_rooms) AS asked (room_id)
JOIN events_room r USING (room_id)
LEFT JOIN events_currentstate m ON m.room_id = r.room_id AND m.type = 'm.room.member' AND m.state_key = asked_user
LEFT JOIN events_roomaccess a ON a.room_id = r.room_id AND a.user_id = asked_user
LEFT JOIN (
    events_currentstate p JOIN events_event pe ON pe.event_id = p.event_id AND pe.redacted_by IS NULL
    JOIN events_eventjson j ON j.event_id = p.event_id
) ON p.room_id = r.room_id AND p.type = 'm.room.retention' AND p.state_key = '';
END $access$
"""
_PARAMETERS = (
    "p_room text, p_user_id text, p_peeking boolean, p_recorded boolean, p_cut bigint, p_cut_depth bigint, "
    "p_kept_since bigint, p_topological bigint, p_stream bigint, p_base bigint, p_writers text[], "
    "p_positions bigint[], p_wanted integer"
)
_COLUMNS = (
    "out_0 character varying, out_1 character varying, out_2 text, out_3 character varying, "
    "out_4 character varying, out_5 character varying, out_6 bigint, out_7 bigint, out_8 text, out_9 bigint, "
    "out_10 character varying, out_11 text, out_12 character varying, out_13 text, out_14 character varying, "
    "out_15 boolean, out_16 boolean, out_17 bigint, out_18 bigint"
)
_SERVED = """
e.event_id, e.room_id, j.room_version, e.type, e.state_key, e.sender, e.stream_ordering, e.topological_ordering,
e.instance_name, e.origin_server_ts, e.redacts, convert_from(j.json, 'UTF8'), e.redacted_by,
(SELECT convert_from(r.json, 'UTF8') FROM events_eventjson r WHERE r.event_id = e.redacted_by),
(SELECT r.redacts FROM events_event r WHERE r.event_id = e.redacted_by),
(SELECT r.redacted_by IS NOT NULL OR EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = r.sender)
 FROM events_event r WHERE r.event_id = e.redacted_by)
"""
_JSON = """
JOIN LATERAL (SELECT x.room_version, x.json FROM events_eventjson x WHERE x.event_id = e.event_id OFFSET 0) j ON true
"""
_QUERY = """
WITH page AS MATERIALIZED (
  SELECT e.*, (EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = e.sender) AND CASE
  WHEN (e.type = 'm.room.member' AND e.state_key = a.user_id) THEN NOT coalesce(e.membership = 'join'
    OR (e.membership <> 'leave' AND events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = e.state_group), a.user_id) = 'join'), false)
  ELSE events_membership_at(e.state_group, a.user_id) IS DISTINCT FROM 'join' END) AS pruned FROM (SELECT * FROM events_event
    WHERE room_id = p_room AND (topological_ordering, stream_ordering) {beyond} (p_topological, p_stream)
      AND stream_ordering <= {bounds}
    ORDER BY topological_ordering {order}, stream_ordering {order} LIMIT 1000) AS e CROSS JOIN (SELECT
    p_user_id AS user_id, p_peeking AS peeking, p_recorded AS recorded, p_cut AS cut, p_cut_depth AS cut_depth,
    p_kept_since AS kept_since) AS a
  WHERE e.stream_ordering {reached} coalesce((p_positions)[array_position(p_writers, e.instance_name)], p_base) AND (NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL
  AND e.type NOT IN ('m.room.aliases', 'org.matrix.dummy_event'))
AND (a.cut IS NULL OR (e.stream_ordering <= a.cut
  AND (e.stream_ordering > 0 OR e.topological_ordering <= a.cut_depth)))
AND (e.type NOT IN ('m.room.redaction', 'm.call.invite') OR NOT coalesce((SELECT true FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'withheld'
      AND v.first = e.stream_ordering LIMIT 1), false))
AND (
  coalesce((
      SELECT (v.last IS NULL OR v.last >= e.stream_ordering) AND (v.kind = 'world' OR NOT a.peeking) FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind IN ('shared', 'world') AND v.first <= e.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false)
  OR (e.type = 'm.room.history_visibility' AND NOT EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = e.sender) AND (
    coalesce((SELECT true FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'world_before'
      AND v.first = e.stream_ordering LIMIT 1), false) OR (coalesce((SELECT true FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'shared_before'
      AND v.first = e.stream_ordering LIMIT 1), false) AND NOT a.peeking)))
  OR (
    (a.recorded OR NOT a.peeking)
    AND CASE WHEN a.peeking AND coalesce((
      SELECT (v.last IS NULL OR v.last >= e.stream_ordering) AND v.kind = 'shared' FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind IN ('shared', 'world') AND v.first <= e.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false) THEN CASE WHEN (e.type = 'm.room.member' AND e.state_key = a.user_id) THEN coalesce(e.membership = 'join'
        OR events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = e.state_group), a.user_id) = 'join'
        OR (e.membership = 'leave' AND events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = e.state_group), a.user_id) = 'invite'), false)
      ELSE coalesce(events_membership_at(e.state_group, a.user_id) = 'join', false) END
      ELSE ((coalesce((
      SELECT (v.last IS NULL OR v.last >= e.stream_ordering) AND true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id = a.user_id AND v.kind IN ('joined', 'invited') AND v.first <= e.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false) AND NOT coalesce((SELECT true FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id = a.user_id AND v.kind = 'hidden'
      AND v.first = e.stream_ordering LIMIT 1), false)) OR coalesce((SELECT true FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id = a.user_id AND v.kind = 'shown'
      AND v.first = e.stream_ordering LIMIT 1), false)) END
  )
)
AND (e.state_key IS NOT NULL OR (
  (a.kept_since IS NULL OR e.origin_server_ts >= a.kept_since)
  AND NOT e.sender = ANY(ARRAY(
    SELECT i.ignored_user_id FROM events_ignoreduser i WHERE i.user_id = p_user_id))
))
  ORDER BY e.topological_ordering {order}, e.stream_ordering {order} LIMIT p_wanted
), last AS MATERIALIZED (
  SELECT * FROM (SELECT * FROM events_event
    WHERE room_id = p_room AND (topological_ordering, stream_ordering) {beyond} (p_topological, p_stream)
      AND stream_ordering <= {bounds}
    ORDER BY topological_ordering {order}, stream_ordering {order} OFFSET 999 LIMIT 1) AS row WHERE (SELECT count(*) FROM page) < p_wanted
)
SELECT {served}, e.pruned, last.topological_ordering, last.stream_ordering
FROM (SELECT) AS one LEFT JOIN (page AS e {json}) ON true LEFT JOIN last ON true
"""


def page(name, **parts):
    query = _QUERY.format(served=_SERVED, json=_JSON, **parts)
    return f"""CREATE FUNCTION {name}({_PARAMETERS}) RETURNS TABLE ({_COLUMNS})
LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan SET enable_sort = off AS $page$
BEGIN
RETURN QUERY {query};
END $page$"""


_BEFORE = page(
    "events_page_before",
    beyond="<",
    order="DESC",
    reached="<=",
    bounds="least(p_cut, (SELECT max(top) FROM unnest(p_positions || p_base) AS top))",
)
_AFTER = page(
    "events_page_after",
    beyond=">",
    order="ASC",
    reached=">",
    bounds="least(p_cut, 9223372036854775807) AND stream_ordering > p_base",
)
_DROP_PAGES = "DROP FUNCTION events_page_before; DROP FUNCTION events_page_after"


class Migration(migrations.Migration):
    dependencies = [("events", "0007_gaps")]

    operations = [
        migrations.RemoveIndex("eventvisibility", "events_eventvisibility_range"),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(fields=["room_id", "user_id", "kind", "first"], name="events_eventvisibility_range"),
        ),
        migrations.RemoveIndex("eventvisibility", "events_eventvisibility_user"),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(fields=["user_id", "room_id", "kind", "first"], name="events_eventvisibility_user"),
        ),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(
                fields=["room_id", "first"],
                name="events_eventvisibility_wide",
                condition=models.Q(("kind__in", ("shared", "world")), ("user_id__isnull", True)),
            ),
        ),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(
                fields=["room_id", "user_id", "first"],
                name="events_eventvisibility_own",
                condition=models.Q(("kind__in", ("joined", "invited"))),
            ),
        ),
        migrations.RunSQL(_ACCESS, "DROP FUNCTION events_access(text, text[])"),
        migrations.RunSQL(f"{_BEFORE}; {_AFTER}", _DROP_PAGES),
    ]
