"""Tables whose rows change often keep room on their pages. The streams' sequences are in ``streams_catalog``."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0001_initial")]

    operations = [
        migrations.RunSQL(
            # Positions change all the time and no indexed column does: room on the page keeps updates cheap.
            sql="ALTER TABLE streams_streamposition SET (fillfactor = 50); ALTER TABLE streams_instance SET (fillfactor = 50); "
            "ALTER TABLE streams_reader SET (fillfactor = 50);",
            reverse_sql="ALTER TABLE streams_streamposition RESET (fillfactor); "
            "ALTER TABLE streams_instance RESET (fillfactor); ALTER TABLE streams_reader RESET (fillfactor);",
        ),
    ]
