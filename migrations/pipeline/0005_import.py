"""Holds nothing yet."""

from django.db import migrations


class Migration(migrations.Migration):
    """Empty."""

    dependencies = [("pipeline", "0004_statistics")]
    operations = []
