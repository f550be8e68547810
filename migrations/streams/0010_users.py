"""Makes nothing any more: the indexes of the homeserver streams are in ``streams_catalog``."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0009_epoch_successor")]

    operations = []
