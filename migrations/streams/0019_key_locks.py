"""The rows that appends lock while they delete older facts of a key.

Older processes: take advisory locks for this instead. While both run, the older fact of a key may stay until the next one.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0018_kinds_of_counts")]

    operations = [
        migrations.CreateModel(
            name="KeyLock",
            fields=[
                (
                    "name",
                    models.TextField(
                        primary_key=True,
                        serialize=False,
                        help_text="table of the facts, and a number that a hash assigns to the key",
                    ),
                ),
            ],
            options={"db_table": "streams_keylock", "ordering": ["name"]},
        ),
    ]
