"""A connection's row says what its certificate may do; operators may end sessions whose locks writers wait for."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0020_readers_operators")]

    operations = [
        migrations.AddField(
            model_name="reader",
            name="rights",
            field=models.JSONField(
                help_text="what its certificate may do and how often it was refused; null: no rule limits it", null=True
            ),
        ),
        migrations.AlterModelOptions(
            name="streamposition",
            options={
                "ordering": ["stream", "instance_name"],
                "permissions": [
                    ("retire_writer", "Can retire writers"),
                    ("end_writer", "Can end what a writer holds open"),
                    ("end_lock_holder", "Can end sessions whose locks a writer waits for"),
                ],
            },
        ),
    ]
