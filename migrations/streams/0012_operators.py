"""Operators may disconnect readers, retire writers, and end what they hold open."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("streams", "0011_samples"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="reader",
            options={
                "ordering": ["kind", "name", "key"],
                "permissions": [("disconnect_reader", "Can disconnect readers")],
            },
        ),
        migrations.AlterModelOptions(
            name="streamposition",
            options={
                "ordering": ["stream", "instance_name"],
                "permissions": [
                    ("retire_writer", "Can retire writers"),
                    ("end_writer", "Can end what a writer holds open"),
                ],
            },
        ),
        migrations.AddField(
            model_name="reader",
            name="disconnect_asked_by",
            field=models.TextField(db_default="", help_text="who wants the connection ended; its server does it"),
        ),
    ]
