"""How far jobs over many rooms are, for those that were killed."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import state.fields


class Migration(migrations.Migration):
    """The table of compared rooms."""

    dependencies = [("pipeline", "0006_resync")]
    operations = [
        migrations.CreateModel(
            name="ComparedRooms",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "through",
                    state.fields.IdentifierField(
                        db_collation="C", help_text="all rooms up to this one are done; empty: none"
                    ),
                ),
                (
                    "room_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=state.fields.IdentifierField(db_collation="C"), help_text="done as well", size=None
                    ),
                ),
                (
                    "counted",
                    models.JSONField(help_text="figures of the job so far; null but in its newest row", null=True),
                ),
                ("job", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="pipeline.job")),
            ],
            options={
                "db_table": "pipeline_comparedrooms",
                "ordering": ["id"],
                "verbose_name_plural": "compared rooms",
            },
        ),
    ]
