from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0007_gaps")]

    operations: list = []
