"""Jobs that carry out what a dry run has shown, and who may ask for them.

Older processes: leave the new column empty. The table of jobs is small, so its index is built at once.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that ties a job to its dry run, and a permission."""

    dependencies = [("pipeline", "0007_compared_rooms")]
    operations = [
        migrations.AddField(
            model_name="job",
            name="confirmed_from",
            field=models.BigIntegerField(
                help_text="the dry run whose figures somebody has confirmed; each is carried out once",
                null=True,
                unique=True,
            ),
        ),
        migrations.AlterModelOptions(
            name="job",
            options={
                "ordering": ["-id"],
                "permissions": [
                    ("cancel_job", "Can cancel jobs"),
                    ("queue_job", "Can queue jobs that change nothing: checks and dry runs"),
                    (
                        "carry_out_job",
                        "Can have jobs carried out: what a dry run has shown, imports, restores, exports",
                    ),
                ],
            },
        ),
    ]
