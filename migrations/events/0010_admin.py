from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0009_creating")]

    operations: list = []
