"""The sequences of stored streams start above 1, which means "empty": also where a schema is put back without its rows.

A statement is a transaction of its own, so that an append to several streams waits for one sequence at a time.

NO CYCLE changes nothing, but discards the IDs that are logged ahead. START alone keeps them for a sequence whose ID 1 was taken:
the next 32 IDs are given out without WAL, and again after a crash of the server.

Older processes: take their IDs as before. The start counts only until the first ID.
"""

from django.db import migrations

STORED = (
    "accountdatachange",
    "cacheinvalidation",
    "devicelistchange",
    "groupchange",
    "presence",
    "pusherchange",
    "pushrulechange",
    "receipt",
    "todevicemessage",
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("streams_catalog", "0001_initial")]

    operations = [
        migrations.RunSQL(
            f"ALTER SEQUENCE streams_{table}_seq START WITH 2 NO CYCLE",
            f"ALTER SEQUENCE streams_{table}_seq START WITH 1",
        )
        for table in STORED
    ]
