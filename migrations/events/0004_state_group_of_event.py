from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0003_erased_users")]

    operations: list = []
