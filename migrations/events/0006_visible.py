"""Who sees what as views to join, and what is decided on reading: forgotten rooms, ignored users.

The text of the views is that of ``events.visibility.predicate_sql``: who changes it adds a migration that drops them and makes them again.
"""

from typing import Any

from django.db import migrations, models

import state.fields
from events.visibility import predicate_sql

#: Rooms that were world readable to their end were readable by anybody.
_PEEKABLE = """
INSERT INTO events_eventvisibility (room_id, kind, first)
SELECT room_id, 'peekable', first FROM events_eventvisibility WHERE user_id IS NULL AND kind = 'world' AND last IS NULL
"""
_NOT_PEEKABLE = (
    "DELETE FROM events_eventvisibility WHERE kind IN ('peekable', 'withheld', 'world_before', 'shared_before')"
)


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
        migrations.RunSQL(predicate_sql.MEMBERSHIP_AT, "DROP FUNCTION events_membership_at(bigint, text)"),
        migrations.RunSQL(predicate_sql.ROOM_ACCESS, "DROP VIEW events_roomaccess"),
        migrations.RunSQL(predicate_sql.VISIBLE_EVENT, "DROP VIEW events_visibleevent"),
    ]
