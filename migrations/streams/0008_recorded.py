"""What is recorded of foreign servers."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("streams", "0007_workers"),
    ]

    operations = [
        migrations.CreateModel(
            name="RecordedServer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(help_text="as given to --record", unique=True)),
                ("server_name", models.TextField(help_text="what the server calls itself")),
                ("address", models.TextField(help_text="where it is followed")),
                ("host", models.TextField(db_default="")),
                ("process_id", models.BigIntegerField(null=True)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("heartbeat_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(help_text="when recording was ended in order", null=True)),
            ],
            options={
                "db_table": "streams_recordedserver",
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="RecordedGap",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream", models.TextField()),
                ("writer", models.TextField()),
                ("after", models.BigIntegerField()),
                ("upto", models.BigIntegerField()),
                ("reason", models.TextField(db_default="")),
                ("recorded_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("server", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="streams.recordedserver")),
            ],
            options={
                "db_table": "streams_recordedgap",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="RecordedPosition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream", models.TextField()),
                ("writer", models.TextField(help_text="the instance name, with ~2, ~3 … for later lives")),
                ("instance_name", models.TextField()),
                ("life", models.IntegerField(db_default=1)),
                ("is_current", models.BooleanField(db_default=True, help_text="the writer's present life")),
                (
                    "position",
                    models.BigIntegerField(help_text="everything up to here was recorded, or is among the gaps"),
                ),
                ("last_fact_position", models.BigIntegerField(null=True)),
                ("last_fact_at", models.DateTimeField(null=True)),
                ("last_advance_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("rows_recorded", models.BigIntegerField(db_default=0)),
                ("ranges_missed", models.BigIntegerField(db_default=0)),
                (
                    "trimmed_upto",
                    models.BigIntegerField(db_default=0, help_text="recorded facts up to here may have been removed"),
                ),
                (
                    "server",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.CASCADE, to="streams.recordedserver"
                    ),
                ),
            ],
            options={
                "db_table": "streams_recordedposition",
                "ordering": ["server", "stream", "writer"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("server", "stream", "writer"), name="streams_recordedposition_writer"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RecordedFact",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream", models.TextField()),
                ("writer", models.TextField()),
                ("token", models.BigIntegerField()),
                ("index", models.IntegerField(help_text="place among the rows of its token")),
                ("row", models.TextField(help_text="compact ASCII JSON")),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "server",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.CASCADE, to="streams.recordedserver"
                    ),
                ),
            ],
            options={
                "db_table": "streams_recordedfact",
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("server", "stream", "writer", "token", "index"), name="streams_recordedfact_row"
                    )
                ],
            },
        ),
    ]
