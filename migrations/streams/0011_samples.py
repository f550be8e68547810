"""History of positions, lag and status."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("streams", "0010_users"),
    ]

    operations = [
        migrations.CreateModel(
            name="Sample",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "step_seconds",
                        "stream",
                        "reader",
                        "at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("step_seconds", models.IntegerField(help_text="length of the step")),
                ("stream", models.TextField(db_collation="C")),
                ("reader", models.TextField(db_collation="C", help_text="empty: the stream itself")),
                ("at", models.DateTimeField(help_text="begin of the step")),
                ("position", models.BigIntegerField(help_text="linear position at the end of the step")),
                ("waiting", models.BigIntegerField(help_text="most facts that were pending, or not read")),
                ("seconds", models.FloatField(help_text="greatest age of the oldest of these")),
                ("severity", models.SmallIntegerField(help_text="0 fine, 1 note, 2 warning, 3 wrong")),
                ("word", models.TextField(help_text="the worst status word")),
            ],
            options={
                "db_table": "streams_sample",
                "indexes": [models.Index(fields=["step_seconds", "at"], name="streams_sample_age")],
            },
        ),
        migrations.CreateModel(
            name="StatusChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_index=True)),
                ("stream", models.TextField(db_collation="C")),
                ("writer", models.TextField(db_collation="C", help_text="empty: it is about a reader")),
                ("reader", models.TextField(db_collation="C", help_text="empty: it is about a writer")),
                ("was", models.TextField(help_text="status word before; empty: not seen before")),
                ("word", models.TextField()),
                ("severity", models.SmallIntegerField(help_text="0 fine, 1 note, 2 warning, 3 wrong")),
                ("sentence", models.TextField(help_text="what it means and what to do")),
            ],
            options={
                "db_table": "streams_statuschange",
                "ordering": ["-id"],
                "indexes": [models.Index(fields=["stream", "-id"], name="streams_statuschange_stream")],
            },
        ),
    ]
