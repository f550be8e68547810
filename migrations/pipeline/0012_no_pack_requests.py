"""Tasks that load packs take stream IDs themselves.

The site is stopped for this migration. Older processes: a running import fails, and is to be resumed.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pipeline", "0011_counts_of_rooms")]

    operations = [migrations.DeleteModel("PackRequest")]
