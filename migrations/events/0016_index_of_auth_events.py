"""Finds the events that name an event as auth event."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("events", "0015_summaries_of_stored_rooms")]

    operations = [
        AddIndexConcurrently(
            "eventauth", GinIndex(fields=["auth_event_ids"], fastupdate=False, name="events_eventauth_named")
        ),
    ]
