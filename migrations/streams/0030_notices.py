"""Messages by mail and webhook that the site is wrong, or well again. Older processes know nothing of them."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("streams", "0029_commands_of_records")]

    operations = [
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.UUIDField(help_text="the same whenever the message is sent again", unique=True)),
                ("at", models.DateTimeField(db_default=Now())),
                ("word", models.TextField(help_text="wrong, or well")),
                ("sentence", models.TextField(help_text="the worst trouble, or how long it has been well")),
                ("problems", models.JSONField(default=list, help_text="what is wrong: subject, word, sentence")),
                ("waiting", models.JSONField(default=list, help_text="channels on which it is not delivered yet")),
                ("attempts", models.IntegerField(db_default=0, help_text="failed attempts at them")),
                ("tried_at", models.DateTimeField(help_text="when the last of these was", null=True)),
                ("error", models.TextField(db_default="", help_text="the last error")),
            ],
            options={"db_table": "streams_notice", "ordering": ["-id"]},
        ),
    ]
