"""Names of tables in the admin; nothing changes in the database."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("events", "0008_pages")]

    operations = [
        migrations.AlterModelOptions(name="backwardextremity", options={"verbose_name_plural": "backward extremities"}),
        migrations.AlterModelOptions(name="currentstate", options={"verbose_name_plural": "current state"}),
        migrations.AlterModelOptions(name="eventauth", options={"verbose_name_plural": "auth events"}),
        migrations.AlterModelOptions(
            name="eventjson", options={"verbose_name": "event JSON", "verbose_name_plural": "event JSON"}
        ),
        migrations.AlterModelOptions(
            name="eventvisibility",
            options={"verbose_name": "range of visibility", "verbose_name_plural": "ranges of visibility"},
        ),
        migrations.AlterModelOptions(name="forwardextremity", options={"verbose_name_plural": "forward extremities"}),
    ]
