"""Who sees what as views to join, and what is decided on reading: forgotten rooms, ignored users."""

from typing import Any

from django.db import migrations, models

import state.fields

#: Rooms that were world readable to their end were readable by anybody.
_PEEKABLE = """
INSERT INTO events_eventvisibility (room_id, kind, first)
SELECT room_id, 'peekable', first FROM events_eventvisibility WHERE user_id IS NULL AND kind = 'world' AND last IS NULL
"""
_NOT_PEEKABLE = (
    "DELETE FROM events_eventvisibility WHERE kind IN ('peekable', 'withheld', 'world_before', 'shared_before')"
)
_MEMBERSHIP_AT = """
CREATE FUNCTION events_membership_at(state_group bigint, user_id text) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
WITH RECURSIVE spans AS (
    SELECT chain, id AS upto FROM state_stategroup WHERE id = $1
    UNION ALL
    SELECT below.chain, below.id
    FROM spans
    JOIN state_stategroup AS first ON first.id = spans.chain
    JOIN state_stategroup AS below ON below.id = first.prev_group
)
SELECT member.membership
FROM spans, LATERAL (
    SELECT delta.state_group, delta.event_id FROM state_stategroupdelta AS delta
    WHERE delta.chain = spans.chain AND delta.state_group <= spans.upto
      AND delta.type = 'm.room.member' AND delta.state_key = $2
    ORDER BY delta.state_group DESC LIMIT 1
) AS entry LEFT JOIN events_event AS member USING (event_id)
ORDER BY entry.state_group DESC LIMIT 1
$$
"""
_ROOM_ACCESS = """
CREATE VIEW events_roomaccess AS
SELECT m.state_key AS user_id, m.room_id, NOT (m.membership = 'join' OR (m.membership = 'leave' AND NOT coalesce((
  SELECT true FROM events_forgottenroom f
  WHERE f.user_id = m.state_key AND f.room_id = m.room_id AND f.event_id = m.event_id), false))) AS peeking, true AS recorded,
  cut.first AS cut, cut.depth AS cut_depth, NULL::bigint AS kept_since
FROM events_currentstate m
LEFT JOIN LATERAL (
  SELECT v.first, e.topological_ordering AS depth FROM events_eventvisibility v
  JOIN events_event e ON e.stream_ordering = v.first
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
_VISIBLE_EVENT = """
CREATE VIEW events_visibleevent AS
SELECT a.user_id, e.room_id, e.event_id, e.stream_ordering, e.topological_ordering, e.type, e.state_key, e.sender,
  e.redacted_by IS NOT NULL OR (EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = e.sender) AND CASE
  WHEN (e.type = 'm.room.member' AND e.state_key = a.user_id) THEN NOT coalesce(e.membership = 'join'
    OR (e.membership <> 'leave' AND events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = e.state_group), a.user_id) = 'join'), false)
  ELSE events_membership_at(e.state_group, a.user_id) IS DISTINCT FROM 'join' END) AS redacted
FROM events_event e JOIN events_roomaccess a ON a.room_id = e.room_id
WHERE (NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL
  AND e.type NOT IN ('m.room.aliases', 'org.matrix.dummy_event'))
AND (a.cut IS NULL OR (e.stream_ordering <= a.cut
  AND (e.stream_ordering > 0 OR e.topological_ordering <= a.cut_depth)))
AND (e.type NOT IN ('m.room.redaction', 'm.call.invite') OR NOT coalesce((SELECT true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'withheld'
      AND v.first = e.stream_ordering LIMIT 1), false))
AND (
  coalesce((
      SELECT (v.last IS NULL OR v.last >= e.stream_ordering) AND (v.kind = 'world' OR NOT a.peeking)
      FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind IN ('shared', 'world') AND v.first <= e.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false)
  OR (e.type = 'm.room.history_visibility' AND NOT EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = e.sender) AND (
    coalesce((SELECT true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'world_before'
      AND v.first = e.stream_ordering LIMIT 1), false) OR (coalesce((SELECT true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'shared_before'
      AND v.first = e.stream_ordering LIMIT 1), false) AND NOT a.peeking)))
  OR (
    (a.recorded OR NOT a.peeking)
    AND CASE WHEN a.peeking AND coalesce((
      SELECT (v.last IS NULL OR v.last >= e.stream_ordering) AND v.kind = 'shared' FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id IS NULL AND v.kind IN ('shared', 'world') AND v.first <= e.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false) THEN
        CASE WHEN (e.type = 'm.room.member' AND e.state_key = a.user_id) THEN coalesce(e.membership = 'join'
        OR events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = e.state_group), a.user_id) = 'join'
        OR (e.membership = 'leave' AND events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = e.state_group), a.user_id) = 'invite'), false)
      ELSE coalesce(events_membership_at(e.state_group, a.user_id) = 'join', false) END
      ELSE ((coalesce((
      SELECT (v.last IS NULL OR v.last >= e.stream_ordering) AND true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id = a.user_id AND v.kind IN ('joined', 'invited') AND v.first <= e.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false) AND NOT coalesce((SELECT true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id = a.user_id AND v.kind = 'hidden'
      AND v.first = e.stream_ordering LIMIT 1), false)) OR coalesce((SELECT true FROM events_eventvisibility v
      WHERE v.room_id = e.room_id AND v.user_id = a.user_id AND v.kind = 'shown'
      AND v.first = e.stream_ordering LIMIT 1), false)) END
  )
)
AND (e.state_key IS NOT NULL OR coalesce((
  SELECT false FROM events_ignoreduser i WHERE i.user_id = a.user_id AND i.ignored_user_id = e.sender), true))
"""


def identifier(**options: Any) -> state.fields.IdentifierField:
    return state.fields.IdentifierField(db_collation="C", **options)


class Migration(migrations.Migration):
    dependencies = [("events", "0005_feeds")]

    operations = [
        migrations.CreateModel(
            name="ForgottenRoom",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "user_id", "room_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("user_id", identifier()),
                ("room_id", identifier()),
                (
                    "event_id",
                    identifier(help_text="the user's current membership event when the room was forgotten"),
                ),
            ],
            options={"db_table": "events_forgottenroom"},
        ),
        migrations.CreateModel(
            name="IgnoredUser",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "user_id", "ignored_user_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("user_id", identifier()),
                ("ignored_user_id", identifier()),
            ],
            options={"db_table": "events_ignoreduser"},
        ),
        migrations.CreateModel(
            name="RoomAccess",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "user_id", "room_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("user_id", identifier()),
                ("room_id", identifier()),
                (
                    "peeking",
                    models.BooleanField(
                        help_text="reads it as a world-readable room: neither joined, nor left without forgetting"
                    ),
                ),
                ("recorded", models.BooleanField(help_text="has a membership event in the room")),
                (
                    "cut",
                    models.BigIntegerField(
                        help_text="stream position of the own leave; nothing above it is seen", null=True
                    ),
                ),
                (
                    "cut_depth",
                    models.BigIntegerField(help_text="topological position of the own leave", null=True),
                ),
            ],
            options={"db_table": "events_roomaccess", "managed": False},
        ),
        migrations.CreateModel(
            name="VisibleEvent",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "user_id", "event_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("user_id", identifier()),
                ("room_id", identifier()),
                ("event_id", identifier()),
                ("stream_ordering", models.BigIntegerField()),
                ("topological_ordering", models.BigIntegerField()),
                ("type", identifier()),
                ("state_key", identifier(null=True)),
                ("sender", identifier()),
                ("redacted", models.BooleanField()),
            ],
            options={"db_table": "events_visibleevent", "managed": False},
        ),
        migrations.AlterField(
            model_name="eventvisibility",
            name="kind",
            field=models.TextField(
                choices=[
                    ("world", "world readable"),
                    ("shared", "shared with members"),
                    ("joined", "the user is joined"),
                    ("invited", "invited, and invited members may read"),
                    ("cut", "the user has left or is banned"),
                    ("shown", "single event, shown"),
                    ("hidden", "single event, hidden"),
                    ("world_before", "single event that ends a world-readable part"),
                    ("shared_before", "single event that ends a shared part"),
                    ("withheld", "single event that nobody is shown"),
                    ("peekable", "anybody may read the room"),
                ]
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type", "m.room.member")),
                fields=["state_key", "room_id"],
                name="events_event_member",
            ),
        ),
        migrations.RunSQL(_PEEKABLE, _NOT_PEEKABLE),
        migrations.RunSQL(_MEMBERSHIP_AT, "DROP FUNCTION events_membership_at(bigint, text)"),
        migrations.RunSQL(_ROOM_ACCESS, "DROP VIEW events_roomaccess"),
        migrations.RunSQL(_VISIBLE_EVENT, "DROP VIEW events_visibleevent"),
    ]
