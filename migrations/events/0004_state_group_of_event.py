"""The state group of an event becomes a column of its row; the table that told it is dropped by the room ``state``."""

from django.db import migrations, models

_TO_COLUMN = """
UPDATE events_event e SET state_group = known.state_group FROM state_eventstategroup known WHERE known.event_id = e.event_id
"""
_TO_TABLE = """
INSERT INTO state_eventstategroup (event_id, state_group)
SELECT event_id, state_group FROM events_event WHERE state_group IS NOT NULL
"""


class Migration(migrations.Migration):
    dependencies = [("events", "0003_erased_users"), ("state", "0001_initial")]
    run_before = [("state", "0002_group_is_a_column_of_events")]

    operations = [
        migrations.AddField(
            model_name="event",
            name="state_group",
            field=models.BigIntegerField(
                help_text="the state after it (rejected: before it); null: an outlier, or state_unresolved", null=True
            ),
        ),
        migrations.RunSQL(_TO_COLUMN, _TO_TABLE),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("state_group__isnull", False)),
                fields=["state_group"],
                name="events_event_state_group",
            ),
        ),
    ]
