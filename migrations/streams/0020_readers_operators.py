"""Operators may set readers to the present positions, and retry and drop their dead letters."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0019_key_locks")]

    operations = [
        migrations.AlterModelOptions(
            name="storedcursor",
            options={
                "ordering": ["reader", "stream"],
                "permissions": [
                    ("forget_reader", "Can forget readers and their cursors"),
                    ("resync_reader", "Can set readers to the present positions"),
                ],
            },
        ),
        migrations.AlterModelOptions(
            name="parkedfact",
            options={
                "ordering": ["reader", "stream", "token"],
                "permissions": [
                    ("retry_parked", "Can retry dead letters"),
                    ("drop_parked", "Can drop dead letters"),
                ],
            },
        ),
    ]
