"""Holds nothing yet."""

from django.db import migrations


class Migration(migrations.Migration):
    """Empty."""

    dependencies = [("events", "0010_admin")]
    operations = []
