"""The admin's help names all kinds of counts on replication connections; the table stays as it is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0017_no_known_done")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="wirecount",
                    name="kind",
                    field=models.TextField(help_text="closed, refused, received, sent, updates or dropped"),
                ),
            ],
        ),
    ]
