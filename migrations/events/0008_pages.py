"""Pages of rooms, and who may read them, as functions whose plans are kept."""

from django.db import migrations, models

from events.reading import page_sql
from events.visibility import predicate_sql


class Migration(migrations.Migration):
    dependencies = [("events", "0007_gaps")]

    operations = [
        migrations.RemoveIndex("eventvisibility", "events_eventvisibility_range"),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(fields=["room_id", "user_id", "kind", "first"], name="events_eventvisibility_range"),
        ),
        migrations.RemoveIndex("eventvisibility", "events_eventvisibility_user"),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(fields=["user_id", "room_id", "kind", "first"], name="events_eventvisibility_user"),
        ),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(
                fields=["room_id", "first"],
                name="events_eventvisibility_wide",
                condition=models.Q(("kind__in", ("shared", "world")), ("user_id__isnull", True)),
            ),
        ),
        migrations.AddIndex(
            "eventvisibility",
            models.Index(
                fields=["room_id", "user_id", "first"],
                name="events_eventvisibility_own",
                condition=models.Q(("kind__in", ("joined", "invited"))),
            ),
        ),
        migrations.RunSQL(predicate_sql.ACCESS, "DROP FUNCTION events_access(text, text[])"),
        migrations.RunSQL(f"{page_sql.PAGE_BEFORE}; {page_sql.PAGE_AFTER}", page_sql.DROP_PAGES),
    ]
