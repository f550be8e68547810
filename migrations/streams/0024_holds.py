"""Functions and a table of streams whose open appends PostgreSQL knows (``streams.holds``). No stream uses them yet.

Older processes: know none of them, and no table of theirs changes.
"""

from django.db import migrations

from streams.holds.constraint import InstallHolds


class Migration(migrations.Migration):
    dependencies = [("streams", "0023_commands_without_quotes")]

    operations = [InstallHolds()]
