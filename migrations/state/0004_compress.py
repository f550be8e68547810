"""Holds nothing yet."""

from django.db import migrations


class Migration(migrations.Migration):
    """Empty."""

    dependencies = [("state", "0003_full_state")]
    operations = []
