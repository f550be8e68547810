"""Jobs that are queued and cancelled, and tell figures before and after."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pipeline", "0001_initial"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "ordering": ["-id"],
                "permissions": [("cancel_job", "Can cancel jobs"), ("queue_job", "Can queue jobs")],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="after",
            field=models.JSONField(help_text="the same figures after it", null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="asked_by",
            field=models.TextField(db_default="", help_text="user, or user and host of the command"),
        ),
        migrations.AddField(
            model_name="job",
            name="attempts",
            field=models.SmallIntegerField(db_default=0, help_text="how often runjobs has begun it"),
        ),
        migrations.AddField(
            model_name="job",
            name="before",
            field=models.JSONField(help_text="figures before the work", null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="cancel_asked_by",
            field=models.TextField(db_default="", help_text="who wants it ended; it stops at its next step"),
        ),
        migrations.AddField(
            model_name="job",
            name="queued_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="unit",
            field=models.TextField(db_default="", help_text="what done and total count"),
        ),
        migrations.AlterField(
            model_name="job",
            name="started_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AlterField(
            model_name="job",
            name="state",
            field=models.TextField(
                choices=[
                    ("queued", "queued"),
                    ("running", "running"),
                    ("done", "done"),
                    ("failed", "failed"),
                    ("cancelled", "cancelled"),
                ],
                db_default="running",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state__in", ["queued", "running"])), fields=["id"], name="pipeline_job_open"
            ),
        ),
    ]
