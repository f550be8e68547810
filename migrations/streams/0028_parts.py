"""Several processes share a reader's stream by key: a cursor for each part of the keys, and dead letters know their key.

Older processes: they go on, and store dead letters without a key. A reader has one process then, so each fact has one still.
The table of dead letters is small, so its index is built at once.
"""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("streams", "0027_guards")]

    operations = [
        migrations.CreateModel(
            name="PartCursor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reader", models.TextField()),
                ("stream", models.TextField()),
                ("by_field", models.TextField(help_text="field by whose values facts are shared")),
                ("part", models.SmallIntegerField(help_text="hash of the key, from 0 to 63")),
                ("position", models.BigIntegerField()),
                (
                    "apart_upto",
                    models.BigIntegerField(
                        help_text="facts up to here are handled one by one, as the handler failed on some together",
                        null=True,
                    ),
                ),
                ("attempts", models.IntegerField(db_default=0, help_text="attempts at the next fact that failed")),
                ("retry_at", models.DateTimeField(help_text="when the next attempt is due", null=True)),
                ("facts_handled", models.BigIntegerField(db_default=0)),
                ("facts_parked", models.BigIntegerField(db_default=0)),
                ("moved_at", models.DateTimeField(db_default=Now())),
            ],
            options={"db_table": "streams_partcursor", "ordering": ["reader", "stream", "part"]},
        ),
        migrations.AddConstraint(
            model_name="partcursor",
            constraint=models.UniqueConstraint(fields=("reader", "stream", "part"), name="streams_partcursor_part"),
        ),
        # A cursor's row changes with every transaction of its part: new versions find room on the same page.
        migrations.RunSQL("ALTER TABLE streams_partcursor SET (fillfactor = 20)", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="parkedfact",
            name="key",
            field=models.TextField(db_default="", help_text="the fact's key, if processes share the stream by key"),
        ),
        migrations.AddField(
            model_name="parkedfact",
            name="part",
            field=models.SmallIntegerField(help_text="part of the key", null=True),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "ALTER TABLE streams_parkedfact DROP CONSTRAINT streams_parkedfact_fact, "
                    "ADD CONSTRAINT streams_parkedfact_fact UNIQUE (reader, stream, token, key); "
                    "CREATE INDEX streams_parkedfact_key ON streams_parkedfact (reader, stream, key)",
                    "DROP INDEX streams_parkedfact_key; "
                    "ALTER TABLE streams_parkedfact DROP CONSTRAINT streams_parkedfact_fact, "
                    "ADD CONSTRAINT streams_parkedfact_fact UNIQUE (reader, stream, token)",
                )
            ],
            state_operations=[
                migrations.RemoveConstraint(model_name="parkedfact", name="streams_parkedfact_fact"),
                migrations.AddConstraint(
                    model_name="parkedfact",
                    constraint=models.UniqueConstraint(
                        fields=("reader", "stream", "token", "key"), name="streams_parkedfact_fact"
                    ),
                ),
                migrations.AddIndex(
                    model_name="parkedfact",
                    index=models.Index(fields=["reader", "stream", "key"], name="streams_parkedfact_key"),
                ),
            ],
        ),
    ]
