"""Requests of tasks that load rooms for stream IDs."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    """A table of requests."""

    dependencies = [("pipeline", "0008_confirmed_jobs")]
    operations = [
        migrations.CreateModel(
            name="PackRequest",
            fields=[
                (
                    "transaction",
                    models.BigIntegerField(
                        help_text="number of the task's transaction", primary_key=True, serialize=False
                    ),
                ),
                ("writer", models.TextField(help_text="the job's writer, whose append lock the task holds")),
                ("lease", models.BigIntegerField(help_text="of the writer, as the task has read it")),
                ("counts", models.JSONField(help_text="number of IDs by stream")),
                (
                    "ids",
                    models.JSONField(
                        help_text="runs of IDs (first, last) by stream; null: not reserved yet", null=True
                    ),
                ),
                ("refused", models.TextField(help_text="why no IDs can be had", null=True)),
                ("asked_at", models.DateTimeField(db_default=Now())),
                ("job", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="pipeline.job")),
            ],
            options={"db_table": "pipeline_packrequest", "ordering": ["asked_at"]},
        ),
    ]
