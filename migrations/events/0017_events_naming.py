"""Finds the events that name an event as auth event, always by the index.

Older processes: do not call the function.
"""

from django.db import migrations

from events.persist import naming_sql


class Migration(migrations.Migration):
    dependencies = [("events", "0016_index_of_auth_events")]

    operations = [migrations.RunSQL(naming_sql.EVENTS_NAMING, naming_sql.DROP_EVENTS_NAMING)]
