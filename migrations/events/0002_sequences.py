"""The sequences that number events: one value is taken at once, because position 1 means "empty"."""

from django.db import migrations


def sequence(name):
    return migrations.RunSQL(
        [f"CREATE SEQUENCE {name} AS bigint", f"SELECT nextval('{name}')"],
        f"DROP SEQUENCE {name}",
    )


class Migration(migrations.Migration):
    dependencies = [("events", "0001_initial")]
    operations = [sequence("events_event_stream_seq"), sequence("events_event_backfill_seq")]
