"""Operators ask the process of a reader to retry dead letters; the cursor has the request and what came of it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0021_reader_rights")]

    operations = [
        migrations.AddField(
            model_name="storedcursor",
            name="retry_asked_by",
            field=models.TextField(db_default="", help_text="who asked last to retry dead letters"),
        ),
        migrations.AddField(
            model_name="storedcursor",
            name="retry_asked_at",
            field=models.DateTimeField(help_text="when that was; null: never", null=True),
        ),
        migrations.AddField(
            model_name="storedcursor",
            name="retry_tokens",
            field=models.JSONField(help_text="tokens of the dead letters to retry; null: all", null=True),
        ),
        migrations.AddField(
            model_name="storedcursor",
            name="retry_began_at",
            field=models.DateTimeField(help_text="when the reader's process began it; null: it waits", null=True),
        ),
        migrations.AddField(
            model_name="storedcursor",
            name="retry_result",
            field=models.TextField(db_default="", help_text="what came of it; empty: not done yet"),
        ),
    ]
