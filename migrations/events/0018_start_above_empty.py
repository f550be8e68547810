"""The sequences that number events start above 1, which means "empty": also where a schema is put back without its rows.

Each statement is a transaction of its own, as an append waits for the sequences that one of them holds.

NO CYCLE changes nothing, but discards the IDs that are logged ahead. START alone keeps them for a sequence whose ID 1 was taken:
the next 32 IDs are given out without WAL, and again after a crash of the server.

Older processes: take their IDs as before. The start counts only until the first ID.
"""

from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("events", "0017_events_naming")]

    operations = [
        migrations.RunSQL(
            f"ALTER SEQUENCE events_event_{name}_seq START WITH 2 NO CYCLE",
            f"ALTER SEQUENCE events_event_{name}_seq START WITH 1",
        )
        for name in ("stream", "backfill")
    ]
