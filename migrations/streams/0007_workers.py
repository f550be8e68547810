"""What workers report: who syncs where, acknowledgements, addresses; and what happened on the wire, counted."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streams", "0006_following")]

    operations = [
        migrations.CreateModel(
            name="FederationAcknowledgement",
            fields=[
                ("instance_name", models.TextField(primary_key=True, serialize=False)),
                ("token", models.BigIntegerField()),
                ("acknowledged_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "streams_federationacknowledgement",
                "ordering": ["instance_name"],
            },
        ),
        migrations.CreateModel(
            name="WorkerConnection",
            fields=[
                (
                    "key",
                    models.TextField(
                        help_text="that of the connection in the table of readers", primary_key=True, serialize=False
                    ),
                ),
                ("name", models.TextField(help_text="what the worker calls itself")),
                ("address", models.TextField(db_default="")),
                ("served_by", models.TextField(db_default="", help_text="the replication server of the connection")),
                ("connected_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "last_news_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="when the worker last said anything",
                    ),
                ),
            ],
            options={
                "db_table": "streams_workerconnection",
                "ordering": ["name", "key"],
            },
        ),
        migrations.CreateModel(
            name="SyncingUser",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("connection_key", models.TextField()),
                ("worker", models.TextField(help_text="the random ID of the worker process, not its name")),
                ("user_id", models.TextField()),
                ("device_id", models.TextField(db_default="")),
                ("last_sync_at", models.DateTimeField(help_text="as the worker said")),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "streams_syncinguser",
                "ordering": ["user_id", "worker"],
                "indexes": [
                    models.Index(fields=["user_id"], name="streams_syncinguser_user"),
                    models.Index(fields=["worker"], name="streams_syncinguser_worker"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("connection_key", "worker", "user_id", "device_id"), name="streams_syncinguser_key"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UserAddress",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("user_id", models.TextField()),
                (
                    "token_digest",
                    models.TextField(help_text="SHA-256 of the access token; the token itself is not stored"),
                ),
                ("ip", models.TextField(db_default="")),
                ("device_id", models.TextField(db_default="")),
                ("user_agent", models.TextField(db_default="")),
                ("last_seen_at", models.DateTimeField()),
            ],
            options={
                "db_table": "streams_useraddress",
                "ordering": ["-last_seen_at"],
                "indexes": [models.Index(fields=["last_seen_at"], name="streams_useraddress_seen")],
                "constraints": [
                    models.UniqueConstraint(fields=("user_id", "token_digest", "ip"), name="streams_useraddress_key")
                ],
            },
        ),
        migrations.CreateModel(
            name="WireCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.TextField(help_text="closed, refused, command or dropped")),
                ("name", models.TextField()),
                ("total", models.BigIntegerField(db_default=0)),
            ],
            options={
                "db_table": "streams_wirecount",
                "ordering": ["kind", "name"],
                "constraints": [models.UniqueConstraint(fields=("kind", "name"), name="streams_wirecount_key")],
            },
        ),
    ]
