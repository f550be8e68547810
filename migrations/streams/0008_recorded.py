"""What is recorded of foreign servers."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0007_workers")]

    operations = []
