"""Users whose events are served pruned to whoever was not joined."""

import django.db.models.functions.datetime
from django.db import migrations, models

import state.fields


class Migration(migrations.Migration):
    dependencies = [("events", "0002_sequences")]
    operations = [
        migrations.CreateModel(
            name="ErasedUser",
            fields=[
                ("user_id", state.fields.IdentifierField(db_collation="C", primary_key=True, serialize=False)),
                ("erased_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={"db_table": "events_eraseduser"},
        ),
    ]
