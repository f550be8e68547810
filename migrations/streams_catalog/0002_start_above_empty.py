"""The sequences of stored streams start above 1, which means "empty": also where a schema is put back without its rows.

A statement is a transaction of its own, so that an append to several streams waits for one sequence at a time.

Older processes: take their IDs as before. The start counts only until the first ID.
"""

from django.db import migrations

STORED = (
    "accountdatachange", "cacheinvalidation", "devicelistchange", "groupchange", "presence", "pusherchange",
    "pushrulechange", "receipt", "todevicemessage",
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("streams_catalog", "0001_initial")]

    operations = [
        migrations.RunSQL(
            f"ALTER SEQUENCE streams_{table}_seq START WITH 2", f"ALTER SEQUENCE streams_{table}_seq START WITH 1"
        )
        for table in STORED
    ]
