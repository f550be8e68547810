"""Gaps of timelines by position; the way from a user to memberships: their changes, and those known by their events alone."""

from django.db import migrations, models

import state.fields


class Migration(migrations.Migration):
    dependencies = [("events", "0006_visible")]

    operations = [
        migrations.CreateModel(
            name="TimelineGap",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("room_id", state.fields.IdentifierField(db_collation="C")),
                ("stream_ordering", models.BigIntegerField(help_text="position of the event above the gap")),
                ("instance_name", models.TextField(help_text="writer of that event")),
            ],
            options={
                "db_table": "events_timelinegap",
                "constraints": [
                    models.UniqueConstraint(fields=("room_id", "stream_ordering"), name="events_timelinegap_place"),
                ],
            },
        ),
        migrations.AddIndex(
            model_name="currentstatedelta",
            index=models.Index(
                condition=models.Q(("type", "m.room.member")),
                fields=["state_key", "stream_ordering"],
                name="events_currentstatedelta_user",
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("outlier", True), ("type", "m.room.member")),
                fields=["state_key"],
                name="events_event_outlier_member",
            ),
        ),
    ]
