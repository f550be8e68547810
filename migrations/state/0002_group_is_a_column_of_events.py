"""Drops the table of the groups of events: ``Event.state_group`` tells them now, and is filled before."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("state", "0001_initial")]
    operations = [migrations.DeleteModel(name="EventStateGroup")]
