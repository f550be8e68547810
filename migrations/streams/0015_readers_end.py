"""How a reader ended: when its process let its cursors go, and the error that stopped it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0014_user_addresses")]

    operations = [
        migrations.AlterModelOptions(
            name="storedcursor",
            options={
                "ordering": ["reader", "stream"],
                "permissions": [("forget_reader", "Can forget readers and their cursors")],
            },
        ),
        migrations.AddField(
            model_name="storedcursor",
            name="ended_at",
            field=models.DateTimeField(
                null=True, help_text="when the reader's process let it go; null: it runs, or was killed"
            ),
        ),
        migrations.AddField(
            model_name="storedcursor",
            name="error",
            field=models.TextField(
                db_default="", help_text="what stopped the reader here, until its cursor moves again"
            ),
        ),
        migrations.AddField(
            model_name="reader",
            name="error",
            field=models.TextField(db_default="", help_text="what stopped it; empty: it runs, or ended in order"),
        ),
    ]
