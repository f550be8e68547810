"""An append is an INSERT: writers have no process, and positions are stored by the looker alone.

The site is stopped: older processes would find no table of instances, and cannot append. Older processes: there are none.
"""

from django.db import migrations, models

#: Nothing is open while the site is stopped. A writer is active again with its next fact.
_RETIRE = "UPDATE streams_streamposition SET state = 'retired', updated_at = clock_timestamp()"


class Migration(migrations.Migration):
    dependencies = [("streams", "0025_holds_installed")]

    operations = [
        migrations.DeleteModel("Instance"),
        migrations.DeleteModel("WriterResolution"),
        *(
            migrations.RemoveField("streamposition", name)
            for name in (
                "pending_facts",
                "oldest_pending_id",
                "oldest_pending_at",
                "oldest_pending_transaction",
                "facts_rolled_back",
                "facts_resolved",
            )
        ),
        migrations.AddField(
            "streamposition",
            "last_fact_at",
            models.DateTimeField(help_text="when its last fact was found", null=True),
        ),
        migrations.AlterField(
            "streamposition",
            "facts_written",
            models.BigIntegerField(db_default=0, help_text="facts of this writer that were counted so far"),
        ),
        migrations.AlterField(
            "streamposition",
            "state",
            models.TextField(choices=[("active", "active"), ("retired", "retired")], db_default="active"),
        ),
        migrations.AlterModelOptions(
            "streamposition",
            options={
                "ordering": ["stream", "instance_name"],
                "permissions": [("end_holder", "Can end transactions that hold a stream back")],
            },
        ),
        migrations.RunSQL(_RETIRE, migrations.RunSQL.noop),
    ]
