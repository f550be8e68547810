"""Writers no longer store how many single complete IDs they keep; the column stays and has its default.

Older processes: write the column as before.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0016_commands_without_passwords")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField(model_name="streamposition", name="known_done_ids")],
        ),
    ]
