"""The summaries of rooms that are stored already: some hundred rooms in each transaction, beside writers.

May be stopped and run again: a room that has a summary is not summarized again.

Older processes: a writer waits until the transaction with its room has ended.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models, transaction

_ROOMS_PER_TRANSACTION = 200
#: The lock keeps writers out of these rooms, so that no event is counted twice.
_NEXT = """
SELECT room_id FROM events_room r WHERE room_id > %s AND NOT EXISTS (
    SELECT FROM events_roomsummary s WHERE s.room_id = r.room_id)
ORDER BY room_id LIMIT %s FOR UPDATE
"""


def summarize(apps, schema_editor):
    last = ""
    while True:
        with transaction.atomic(using=schema_editor.connection.alias), schema_editor.connection.cursor() as cursor:
            cursor.execute(_NEXT, [last, _ROOMS_PER_TRANSACTION])
            rooms = [room_id for (room_id,) in cursor.fetchall()]
            if not rooms:
                return
            cursor.execute("SELECT events_summarize(%s::text[])", [rooms])
            last = rooms[-1]


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("events", "0014_room_summaries")]

    operations = [
        migrations.RunPython(summarize, migrations.RunPython.noop, elidable=True),
        AddIndexConcurrently(
            "room",
            models.Index(
                condition=models.Q(
                    ("current_state_unresolved", True), ("visibility_unresolved", True), _connector="OR"
                ),
                fields=["room_id"],
                name="events_room_unknown",
            ),
        ),
    ]
