"""What followers store."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0005_writer_life")]

    operations = []
