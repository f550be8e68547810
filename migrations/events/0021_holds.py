"""PostgreSQL knows the open appends of the streams of events, and refuses facts whose IDs nothing holds.

Each table and stream is a transaction of its own. Flags and other columns of stored events go on to change.

Older processes: stop them before. They take IDs before they hold a stream, and restore archived events without saying so: such
statements are refused by the triggers, and their transactions fail, so nothing is lost.
"""

from django.db import migrations

import streams.holds.constraint


def hold(model, stream, numbers, more, **options):
    source = f"events_event_{numbers}_seq"
    constraint = streams.holds.constraint.StreamHolds(
        stream=stream, sequence=source, id_field="stream_ordering", fixed=False, **options
    )
    return migrations.SeparateDatabaseAndState(
        [
            migrations.RunSQL(
                f"SELECT streams_hold_table('events_{model}', '{stream}', '{source}', 'stream_ordering', fixed => false{more})",
                f"SELECT streams_release_table('events_{model}', '{stream}')",
            )
        ],
        [migrations.AddConstraint(model, constraint)],
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("events", "0020_json_is_utf8"), ("streams", "0025_holds_installed")]

    operations = [
        hold("event", "events", "stream", ", shared => true", shared=True),
        hold(
            "event", "backfill", "backfill", ", backward => true, shared => true, defaults => false",
            backward=True, shared=True,
        ),
        hold("currentstatedelta", "events", "stream", "", name="events_currentstatedelta_holds"),
    ]
