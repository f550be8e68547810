"""Per-user feeds, and when the stored JSON of a redacted event was replaced by its pruned form."""

from typing import Any

from django.db import migrations, models

import state.fields


def identifier(**options: Any) -> state.fields.IdentifierField:
    return state.fields.IdentifierField(db_collation="C", **options)


def key(*fields: str) -> models.CompositePrimaryKey:
    return models.CompositePrimaryKey(*fields, blank=True, editable=False, primary_key=True, serialize=False)


class Migration(migrations.Migration):
    dependencies = [("events", "0004_state_group_of_event")]

    operations = [
        migrations.CreateModel(
            name="Feed",
            fields=[
                ("user_id", identifier(primary_key=True, serialize=False)),
                (
                    "complete_from",
                    models.BigIntegerField(help_text="stream position above which the list is complete"),
                ),
                ("entries", models.IntegerField(help_text="length of the list")),
            ],
            options={"db_table": "events_feed"},
        ),
        migrations.CreateModel(
            name="FeedEntry",
            fields=[
                ("pk", key("user_id", "stream_ordering")),
                ("user_id", identifier()),
                ("stream_ordering", models.BigIntegerField()),
                ("room_id", identifier()),
            ],
            options={"db_table": "events_feedentry"},
        ),
        migrations.CreateModel(
            name="FeedPosition",
            fields=[
                (
                    "name",
                    state.fields.IdentifierField(
                        db_collation="C", primary_key=True, serialize=False, help_text="the reader that writes feeds"
                    ),
                ),
                (
                    "position",
                    models.BigIntegerField(help_text="stream position up to which feeds list what is new"),
                ),
            ],
            options={"db_table": "events_feedposition"},
        ),
        migrations.AddField(
            model_name="room",
            name="content_generation",
            field=models.BigIntegerField(
                db_default=0,
                help_text="raised when stored JSON of the room was rewritten, so that nobody uses what they kept",
            ),
        ),
        migrations.AddField(
            model_name="event",
            name="censored_at",
            field=models.DateTimeField(
                help_text="when its stored JSON was replaced by the pruned form, after a redaction", null=True
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("censored_at__isnull", True), ("redacted_by__isnull", False)),
                fields=["room_id", "stream_ordering"],
                name="events_event_uncensored",
            ),
        ),
    ]
