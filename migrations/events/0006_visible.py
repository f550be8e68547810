from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0005_feeds")]

    operations: list = []
