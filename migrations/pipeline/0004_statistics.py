"""Statistics of rooms, server and users take the place of events per room; the pipeline counts anew from the beginning."""

from django.db import migrations, models

import state.fields


class Migration(migrations.Migration):
    dependencies = [("pipeline", "0003_source")]

    operations = [
        migrations.CreateModel(
            name="RoomDay",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "day", "room_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("day", models.DateField()),
                ("room_id", state.fields.IdentifierField(db_collation="C")),
                ("events", models.BigIntegerField()),
                ("history", models.BigIntegerField()),
            ],
            options={
                "db_table": "pipeline_roomday",
            },
        ),
        migrations.CreateModel(
            name="RoomStatistics",
            fields=[
                ("room_id", state.fields.IdentifierField(db_collation="C", primary_key=True, serialize=False)),
                ("events", models.BigIntegerField(db_default=0, help_text="that came in on the stream events")),
                (
                    "messages",
                    models.BigIntegerField(db_default=0, help_text="m.room.message and m.room.encrypted among them"),
                ),
                ("state_events", models.BigIntegerField(db_default=0, help_text="state events among them")),
                ("rejected", models.BigIntegerField(db_default=0, help_text="rejected ones among them")),
                (
                    "history",
                    models.BigIntegerField(db_default=0, help_text="events that came in on the stream backfill"),
                ),
                (
                    "last_position",
                    models.BigIntegerField(db_default=0, help_text="position of the newest in the stream events"),
                ),
                ("last_event_at", models.DateTimeField(help_text="when that came in", null=True)),
                ("joined", models.IntegerField(db_default=0)),
                ("joined_local", models.IntegerField(db_default=0, help_text="users of this server among the joined")),
                ("invited", models.IntegerField(db_default=0)),
                ("knocking", models.IntegerField(db_default=0)),
                ("left", models.IntegerField(db_default=0)),
                ("banned", models.IntegerField(db_default=0)),
                ("state_entries", models.IntegerField(db_default=0, help_text="entries of the current state")),
                ("figures_at", models.DateTimeField(help_text="when members and state were counted", null=True)),
            ],
            options={
                "verbose_name_plural": "room statistics",
                "db_table": "pipeline_roomstatistics",
            },
        ),
        migrations.CreateModel(
            name="ServerStatistics",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "step_seconds", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("step_seconds", models.IntegerField(help_text="3600: an hour; 86400: a day")),
                ("at", models.DateTimeField(help_text="when it began")),
                ("events", models.BigIntegerField(db_default=0)),
                ("messages", models.BigIntegerField(db_default=0)),
                ("state_events", models.BigIntegerField(db_default=0)),
                ("rejected", models.BigIntegerField(db_default=0)),
                ("history", models.BigIntegerField(db_default=0)),
                ("active_rooms", models.IntegerField(db_default=0, help_text="rooms with new events; of days only")),
                (
                    "active_users",
                    models.IntegerField(db_default=0, help_text="senders of accepted events; of days only"),
                ),
                (
                    "active_local_users",
                    models.IntegerField(db_default=0, help_text="users of this server among them; of days only"),
                ),
                (
                    "monthly_local_users",
                    models.IntegerField(help_text="users of this server active in 30 days", null=True),
                ),
                ("rooms", models.IntegerField(null=True)),
                ("joined", models.BigIntegerField(help_text="memberships: a user counts in each room", null=True)),
                ("joined_local", models.BigIntegerField(help_text="memberships of users of this server", null=True)),
                (
                    "state_entries",
                    models.BigIntegerField(help_text="entries of the current state of all rooms", null=True),
                ),
                ("state_groups", models.BigIntegerField(help_text="as PostgreSQL estimates", null=True)),
                (
                    "state_deltas",
                    models.BigIntegerField(help_text="rows of all state groups, as PostgreSQL estimates", null=True),
                ),
                ("state_bytes", models.BigIntegerField(help_text="tables and indexes of the state groups", null=True)),
                ("event_bytes", models.BigIntegerField(help_text="tables and indexes of the events", null=True)),
                ("database_bytes", models.BigIntegerField(null=True)),
            ],
            options={
                "verbose_name_plural": "server statistics",
                "db_table": "pipeline_serverstatistics",
            },
        ),
        migrations.CreateModel(
            name="UserDay",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "day", "user_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("day", models.DateField()),
                ("user_id", state.fields.IdentifierField(db_collation="C")),
                ("is_local", models.BooleanField(help_text="of this server")),
            ],
            options={
                "db_table": "pipeline_userday",
            },
        ),
        migrations.DeleteModel(
            name="RoomCount",
        ),
        migrations.AlterField(
            model_name="batchledger",
            name="batch_id",
            field=models.BigIntegerField(help_text="Spark's number, since the query was started"),
        ),
        migrations.AlterField(
            model_name="batchledger",
            name="offsets",
            field=models.JSONField(help_text="{stream: {writer: position}} up to which the tables hold every fact"),
        ),
        migrations.RunSQL("DELETE FROM pipeline_batchledger WHERE query = 'room-counts'", migrations.RunSQL.noop),
    ]
