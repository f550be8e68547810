"""Functions and a table of streams whose open appends PostgreSQL knows (``streams.holds``). No stream uses them yet.

Older processes: know none of them, and no table of theirs changes.
"""

from django.db import migrations

from streams.holds.functions_sql import DROP, FUNCTIONS


class Migration(migrations.Migration):
    dependencies = [("streams", "0022_asked_retries")]

    operations = [migrations.RunSQL(FUNCTIONS, DROP)]
