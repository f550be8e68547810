"""How the admin calls more than one of them."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0013_reader_buffers")]

    operations = [
        migrations.AlterModelOptions(
            name="useraddress",
            options={"ordering": ["-last_seen_at"], "verbose_name_plural": "user addresses"},
        ),
    ]
