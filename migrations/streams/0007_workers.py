"""What workers report."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0006_following")]

    operations = []
