"""A user's access to a room takes the same time however many rooms the user is in.

Older processes: the function has the columns that it had.
"""

from django.db import migrations

from events.visibility import predicate_sql

_FUNCTION = predicate_sql.ACCESS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)


class Migration(migrations.Migration):
    dependencies = [("events", "0012_cut_of_a_purged_event")]

    operations = [migrations.RunSQL(_FUNCTION, migrations.RunSQL.noop)]
