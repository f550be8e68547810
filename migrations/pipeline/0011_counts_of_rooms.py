"""The live pipeline keeps counts of rooms alone. The other tables and columns stay in the database, and nothing writes them.

Older processes: write and read all of them as before. A pipeline that still keeps feeds makes its row of the ledger again.
"""

from django.db import migrations

_GONE = ("RoomDay", "ServerStatistics", "UserDay")
_COLUMNS = ("banned", "figures_at", "invited", "joined", "joined_local", "knocking", "left", "state_entries")


class Migration(migrations.Migration):
    dependencies = [("pipeline", "0010_statistics_reader")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                *(migrations.DeleteModel(name) for name in _GONE),
                *(migrations.RemoveField("roomstatistics", name) for name in _COLUMNS),
            ],
        ),
        migrations.RunSQL("DELETE FROM pipeline_batchledger WHERE query = 'feeds'", migrations.RunSQL.noop),
    ]
