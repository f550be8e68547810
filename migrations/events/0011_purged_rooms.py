"""Rooms that were deleted whole, and the trigger that keeps those from being made that are being deleted or are blocked."""

import django.db.models.functions.datetime
from django.db import migrations, models

import state.fields

_SKIP = """
CREATE FUNCTION events_skip_purged_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM events_purgedroom WHERE room_id = NEW.room_id AND (blocked OR finished_at IS NULL)
    ) THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER events_room_purged BEFORE INSERT ON events_room FOR EACH ROW EXECUTE FUNCTION events_skip_purged_room();
"""
_BACK = "DROP TRIGGER events_room_purged ON events_room; DROP FUNCTION events_skip_purged_room();"


class Migration(migrations.Migration):
    dependencies = [("events", "0010_admin")]

    operations = [
        migrations.CreateModel(
            name="PurgedRoom",
            fields=[
                ("room_id", state.fields.IdentifierField(db_collation="C", primary_key=True, serialize=False)),
                (
                    "began_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="when the room was gone for everybody",
                    ),
                ),
                (
                    "finished_at",
                    models.DateTimeField(help_text="when the last of its rows was deleted; null: not yet", null=True),
                ),
                ("asked_by", models.TextField(help_text="user, or user and host of the command")),
                ("blocked", models.BooleanField(db_default=False, help_text="the room is not made again")),
                ("lowest_position", models.BigIntegerField(help_text="lowest stream position of its events")),
                ("highest_position", models.BigIntegerField(help_text="highest stream position of its events")),
                ("highest_group", models.BigIntegerField(help_text="highest ID of its state groups")),
            ],
            options={"db_table": "events_purgedroom"},
        ),
        migrations.RunSQL(_SKIP, _BACK),
    ]
