"""Who has left a room sees nothing above their leave, though the event at which their cut begins was purged.

Older processes: the view has the columns that it had.
"""

from django.db import migrations

from events.visibility import predicate_sql

_VIEW = predicate_sql.ROOM_ACCESS.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1)


class Migration(migrations.Migration):
    dependencies = [("events", "0011_purged_rooms")]

    operations = [migrations.RunSQL(_VIEW, migrations.RunSQL.noop)]
