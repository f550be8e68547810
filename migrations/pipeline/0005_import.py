"""What imports read, one row for each file or database."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """The table of sources."""

    dependencies = [("pipeline", "0004_statistics")]
    operations = [
        migrations.CreateModel(
            name="ImportSource",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.IntegerField(help_text="its place among the job's sources")),
                ("name", models.TextField(help_text="absolute path, or URL without password")),
                ("form", models.TextField(help_text="lines, gzip, zstd, parquet, postgresql or sqlite")),
                (
                    "identity",
                    models.JSONField(
                        help_text="size and time of a file; schema version and stream orderings of a database"
                    ),
                ),
                (
                    "rows",
                    models.BigIntegerField(
                        help_text="lines or rows, blank ones too; null before they were counted", null=True
                    ),
                ),
                ("job", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="pipeline.job")),
            ],
            options={"db_table": "pipeline_importsource", "ordering": ["job", "number"]},
        ),
        migrations.AddConstraint(
            model_name="importsource",
            constraint=models.UniqueConstraint(fields=("job", "number"), name="pipeline_importsource_once"),
        ),
    ]
