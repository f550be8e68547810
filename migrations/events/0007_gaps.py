from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0006_visible")]

    operations: list = []
