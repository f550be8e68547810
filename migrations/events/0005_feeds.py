from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0004_state_group_of_event")]

    operations: list = []
