"""The stored JSON of events is UTF-8: bytes that are not, from SQL or a damaged copy, are refused at the door.

Pages and syncs are sent as text, so one such event ended every page of its room, and every sync of its members. Rows that are
stored already are not looked at.

Older processes: store JSON that was checked to be UTF-8, as before.
"""

from django.db import migrations

_TABLE = "ALTER TABLE events_eventjson"


class Migration(migrations.Migration):
    dependencies = [("events", "0019_no_feeds")]

    operations = [
        migrations.RunSQL(
            f"{_TABLE} ADD CONSTRAINT events_eventjson_utf8 CHECK (convert_from(json, 'UTF8') IS NOT NULL) NOT VALID",
            f"{_TABLE} DROP CONSTRAINT events_eventjson_utf8",
        )
    ]
