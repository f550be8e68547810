"""An epoch has one successor, however many processes notice at once that a new one begins."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0008_recorded")]

    operations = [
        migrations.AddField(
            model_name="epoch",
            name="follows",
            field=models.TextField(
                help_text="word of the epoch before; empty for the first, so that none has two successors",
                null=True,
                unique=True,
            ),
        ),
    ]
