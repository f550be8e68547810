"""A record has the command that continues it, because a mirror is another command than ``follow``."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0028_parts")]

    operations = [
        migrations.AddField(
            model_name="recordedserver",
            name="command",
            field=models.TextField(
                db_default="", help_text="the words after manage.py that record it again; empty: follow"
            ),
        ),
    ]
