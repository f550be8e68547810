"""Rooms that executors mended and nobody was told of yet."""

import django.contrib.postgres.fields
import django.db.models.functions.datetime
from django.db import migrations, models

import state.fields


class Migration(migrations.Migration):
    """The table of mended rooms."""

    dependencies = [("pipeline", "0005_import")]
    operations = [
        migrations.CreateModel(
            name="MendedRoom",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("room_id", state.fields.IdentifierField(db_collation="C")),
                (
                    "user_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=state.fields.IdentifierField(db_collation="C"),
                        help_text="users whose membership was wrong",
                        size=None,
                    ),
                ),
                ("mended_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={"db_table": "pipeline_mendedroom", "ordering": ["id"]},
        ),
    ]
