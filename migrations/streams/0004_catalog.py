"""Streams in memory begin anew. The tables of the homeserver streams, once made here, are in ``streams_catalog``."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("streams", "0003_facts_resolved"),
    ]

    operations = [
        migrations.AddField(
            model_name="streamposition",
            name="generation",
            field=models.BigIntegerField(db_default=0, help_text="how often a stream in memory has begun anew"),
        ),
    ]
