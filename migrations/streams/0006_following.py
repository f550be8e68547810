"""Stored cursors, parked facts, low-water marks, and the traces of readers that were set anew."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0005_writer_life")]

    operations = [
        migrations.CreateModel(
            name="LowWaterMark",
            fields=[
                ("stream", models.TextField(primary_key=True, serialize=False)),
                ("position", models.BigIntegerField(db_default=0)),
                ("writers", models.JSONField(default=dict, help_text="writer -> its highest fact that was trimmed")),
                ("rows_deleted", models.BigIntegerField(db_default=0)),
                ("trimmed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "streams_lowwatermark",
                "ordering": ["stream"],
            },
        ),
        migrations.CreateModel(
            name="ReaderResync",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reader", models.TextField()),
                ("stream", models.TextField()),
                ("from_base", models.BigIntegerField(help_text="null: it had no cursor", null=True)),
                ("from_entries", models.JSONField(default=dict)),
                ("to_base", models.BigIntegerField()),
                ("to_entries", models.JSONField(default=dict)),
                ("resynced_by", models.TextField()),
                ("resynced_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "streams_readerresync",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="ParkedFact",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reader", models.TextField()),
                ("stream", models.TextField()),
                ("token", models.BigIntegerField()),
                ("instance_name", models.TextField(help_text="writer")),
                ("rows", models.JSONField(help_text="the fact's rows as they travel")),
                ("error", models.TextField(help_text="the last error in one line")),
                ("traceback", models.TextField()),
                ("attempts", models.IntegerField()),
                ("parked_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("tried_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "streams_parkedfact",
                "ordering": ["reader", "stream", "token"],
                "constraints": [
                    models.UniqueConstraint(fields=("reader", "stream", "token"), name="streams_parkedfact_fact")
                ],
            },
        ),
        migrations.CreateModel(
            name="StoredCursor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reader", models.TextField()),
                ("stream", models.TextField()),
                ("base", models.BigIntegerField()),
                ("entries", models.JSONField(default=dict, help_text="writer -> position, where above the base")),
                ("epoch", models.TextField(db_default="", help_text="life of the database that the cursor counts in")),
                ("lease", models.BigIntegerField(db_default=0)),
                ("facts_handled", models.BigIntegerField(db_default=0)),
                ("facts_parked", models.BigIntegerField(db_default=0)),
                ("host", models.TextField(db_default="")),
                ("process_id", models.BigIntegerField(null=True)),
                ("moved_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "seen_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="last sign of life of the reader's process",
                    ),
                ),
            ],
            options={
                "db_table": "streams_storedcursor",
                "ordering": ["reader", "stream"],
                "constraints": [
                    models.UniqueConstraint(fields=("reader", "stream"), name="streams_storedcursor_reader")
                ],
            },
        ),
    ]
