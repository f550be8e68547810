"""Sequences of the plain streams. One value is taken at once: position 1 means "empty", IDs start at 2."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0001_initial")]

    operations = [
        migrations.RunSQL(
            sql="CREATE SEQUENCE streams_cacheinvalidation_seq; SELECT nextval('streams_cacheinvalidation_seq');",
            reverse_sql="DROP SEQUENCE streams_cacheinvalidation_seq;",
        ),
        migrations.RunSQL(
            # Positions change all the time and no indexed column does: room on the page keeps updates cheap.
            sql="ALTER TABLE streams_streamposition SET (fillfactor = 50); ALTER TABLE streams_instance SET (fillfactor = 50); "
            "ALTER TABLE streams_reader SET (fillfactor = 50);",
            reverse_sql="ALTER TABLE streams_streamposition RESET (fillfactor); "
            "ALTER TABLE streams_instance RESET (fillfactor); ALTER TABLE streams_reader RESET (fillfactor);",
        ),
    ]
