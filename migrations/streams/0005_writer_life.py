"""The life of writers and of the database."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("streams", "0004_catalog")]

    operations = [
        migrations.CreateModel(
            name="Epoch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "word",
                    models.TextField(help_text="random; tokens that we hand out to keep carry it", unique=True),
                ),
                ("reason", models.TextField(help_text="why it began")),
                ("system_identifier", models.TextField(help_text="of the PostgreSQL cluster")),
                ("database_oid", models.BigIntegerField()),
                (
                    "table_oid",
                    models.BigIntegerField(help_text="of this table: a restore into the same database makes it anew"),
                ),
                (
                    "timeline",
                    models.BigIntegerField(
                        help_text="of the cluster: rises with each promotion or recovery to a point in time"
                    ),
                ),
                ("began_at", models.DateTimeField(db_default=Now())),
            ],
            options={"db_table": "streams_epoch", "ordering": ["-id"]},
        ),
        migrations.AddField(
            model_name="instance",
            name="drain_asked_by",
            field=models.TextField(db_default="", help_text="who asked it to leave its streams; empty: nobody"),
        ),
        migrations.AddField(
            model_name="streamposition",
            name="known_done_ids",
            field=models.IntegerField(
                db_default=0,
                help_text="single complete IDs that its process keeps above the linear position, while they are many",
            ),
        ),
        migrations.AddField(
            model_name="writerresolution",
            name="action",
            field=models.TextField(
                choices=[
                    ("resolved", "proven dead"),
                    ("drained", "left its streams when asked"),
                    ("aborted", "its transactions were ended"),
                ],
                db_default="resolved",
            ),
        ),
        migrations.AlterField(
            model_name="writerresolution",
            name="evidence",
            field=models.TextField(
                help_text="what proved that no transaction of the writer is open, or what was ended"
            ),
        ),
        migrations.AlterField(
            model_name="writerresolution",
            name="resolved_by",
            field=models.TextField(help_text="instance that did it, or who asked for it"),
        ),
    ]
