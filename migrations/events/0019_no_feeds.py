"""Per-user feeds are not kept any more. Their tables are emptied, and stay in the database.

Older processes: find no feed and ask the rooms, with the same answers. A handler of feeds begins them anew.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0018_start_above_empty")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.DeleteModel(name) for name in ("Feed", "FeedEntry", "FeedPosition")],
        ),
        migrations.RunSQL("TRUNCATE events_feed, events_feedentry, events_feedposition", migrations.RunSQL.noop),
    ]
