"""What waits on its way to a reader, and in it: lines, bytes that the kernel holds, rows that are not handled yet."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("streams", "0012_operators"),
    ]

    operations = [
        migrations.AddField(
            model_name="reader",
            name="waiting_lines",
            field=models.BigIntegerField(db_default=0, help_text="lines that wait for the connection to take them"),
        ),
        migrations.AddField(
            model_name="reader",
            name="kernel_send_bytes",
            field=models.BigIntegerField(db_default=0, help_text="sent, and not acknowledged by the other host"),
        ),
        migrations.AddField(
            model_name="reader",
            name="kernel_read_bytes",
            field=models.BigIntegerField(db_default=0, help_text="received, and not read by us"),
        ),
        migrations.AddField(
            model_name="reader",
            name="queued",
            field=models.JSONField(
                default=dict, db_default={}, help_text="stream -> rows received and not handled yet"
            ),
        ),
    ]
