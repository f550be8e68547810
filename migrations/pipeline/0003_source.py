"""What Spark has appended to streams."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    """The table of writes."""

    dependencies = [("pipeline", "0002_jobs")]
    operations = [
        migrations.CreateModel(
            name="SourceWrite",
            fields=[
                (
                    "write_id",
                    models.TextField(
                        help_text="option writeId, else the name of the job's staging table",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("stream", models.TextField()),
                ("writer", models.TextField(help_text="who appended; empty for a write of nothing")),
                ("facts", models.BigIntegerField()),
                ("first_id", models.BigIntegerField(null=True)),
                ("last_id", models.BigIntegerField(null=True)),
                (
                    "committed_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), db_index=True),
                ),
            ],
            options={"db_table": "pipeline_sourcewrite", "ordering": ["-committed_at"]},
        ),
    ]
