"""The table of mirrored servers."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pipeline", "0012_no_pack_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="MirroredServer",
            fields=[
                (
                    "name",
                    models.TextField(
                        help_text="also the name of the record of its positions", primary_key=True, serialize=False
                    ),
                ),
                ("server_name", models.TextField()),
                ("source", models.TextField(help_text="URL of its database, without password")),
                ("address", models.TextField(help_text="of its replication")),
                (
                    "import_job",
                    models.BigIntegerField(help_text="the import that filled the rooms first", null=True),
                ),
                ("filled_at", models.DateTimeField(help_text="end of that import; null before it", null=True)),
                ("positions", models.JSONField()),
                (
                    "jobs_before",
                    models.BigIntegerField(db_default=0, help_text="last job before the positions were read"),
                ),
                (
                    "events",
                    models.BigIntegerField(
                        db_default=0, help_text="events that were stored since, live ones and old ones"
                    ),
                ),
                ("rejected", models.BigIntegerField(db_default=0, help_text="of these, rejected by the server")),
                (
                    "refused",
                    models.BigIntegerField(
                        db_default=0, help_text="events put aside, see the quarantined lines of the job"
                    ),
                ),
                ("left_out", models.BigIntegerField(db_default=0, help_text="events of rooms that were purged here")),
                ("moved_at", models.DateTimeField(help_text="when events were last stored", null=True)),
            ],
            options={
                "db_table": "pipeline_mirroredserver",
            },
        ),
    ]
