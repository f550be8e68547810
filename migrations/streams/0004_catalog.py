"""The plain homeserver streams."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0003_facts_resolved")]

    operations = []
