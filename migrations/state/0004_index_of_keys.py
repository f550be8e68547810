"""Finds the entry of a group at one key, however many changes lie above it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("state", "0003_full_state")]

    operations = [
        AddIndexConcurrently(
            "stategroupdelta",
            models.Index(fields=["chain", "type", "state_key", "state_group"], name="state_stategroupdelta_key"),
        ),
    ]
