"""The tables of the homeserver streams, which the app ``streams`` made before they were an app of their own.

A site that has them already keeps them with all rows. Permissions on them are copied. To undo the migration leaves the
tables too: the version before, to which a site may go back, has them in the app ``streams``.

Older processes: use the tables under the same names, and the permissions under the old app's name, which stay.
"""

import django.contrib.postgres.fields
import django.db.models.expressions
import django.db.models.functions.datetime
from django.apps import apps as installed
from django.db import migrations, models

IN_MEMORY = ("federation", "presencefederation", "typing")
STORED = (
    "accountdatachange",
    "cacheinvalidation",
    "devicelistchange",
    "groupchange",
    "presence",
    "pusherchange",
    "pushrulechange",
    "receipt",
    "todevicemessage",
)
UNLOGGED = ("streams_federation", "streams_presencefederation", "streams_typing", "streams_typinguser")


class CreateWhereMissing(migrations.CreateModel):
    """Creates a model's table, or only the indexes that the table lacks where an older migration has created it."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        model = to_state.apps.get_model(app_label, self.name)
        table, connection = model._meta.db_table, schema_editor.connection
        if not self.allow_migrate_model(connection.alias, model):
            return
        with connection.cursor() as cursor:
            if table in connection.introspection.table_names(cursor):
                there = connection.introspection.get_constraints(cursor, table)
                for index in model._meta.indexes:
                    if index.name not in there:
                        schema_editor.add_index(model, index)
                return
        super().database_forwards(app_label, schema_editor, from_state, to_state)
        if table in UNLOGGED:  # what is in memory elsewhere need not survive a crash, and costs no log
            schema_editor.execute(f"ALTER TABLE {table} SET UNLOGGED")

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        """Leaves the table and its rows."""


def make_sequence(name, first):
    """Position 1 of a stored stream means "empty", so its first ID is 2; one in memory begins at 0."""
    take_one = f"SELECT nextval('{name}') FROM {name} WHERE NOT is_called" if first == 2 else "SELECT 1"
    return migrations.RunSQL([f"CREATE SEQUENCE IF NOT EXISTS {name} AS bigint", take_one], migrations.RunSQL.noop)


_CONTENT_TYPES = """
INSERT INTO django_content_type (app_label, model)
SELECT 'streams_catalog', model FROM django_content_type WHERE app_label = 'streams' AND model = ANY(%(models)s)
ON CONFLICT DO NOTHING
"""
_PAIRS = """
django_content_type was
JOIN django_content_type now ON now.app_label = 'streams_catalog' AND now.model = was.model
JOIN auth_permission old ON old.content_type_id = was.id
"""
_OLD = "was.app_label = 'streams' AND was.model = ANY(%(models)s)"
_PERMISSIONS = f"""
INSERT INTO auth_permission (content_type_id, codename, name)
SELECT now.id, old.codename, old.name FROM {_PAIRS} WHERE {_OLD} ON CONFLICT DO NOTHING
"""
_HOLDERS = f"""
INSERT INTO {{table}} ({{holder}}, permission_id)
SELECT held.{{holder}}, new.id FROM {_PAIRS}
JOIN auth_permission new ON new.content_type_id = now.id AND new.codename = old.codename
JOIN {{table}} held ON held.permission_id = old.id
WHERE {_OLD} ON CONFLICT DO NOTHING
"""


def copy_permissions(apps, schema_editor):
    """Gives groups and users the permissions on the moved models that they had.

    The old ones stay, so that pages of older processes can be opened; ``remove_stale_contenttypes`` removes them.
    """
    names = {"models": [model.name.lower() for model in Migration.operations if isinstance(model, CreateWhereMissing)]}
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        there = connection.introspection.table_names(cursor)
        if not {"django_content_type", "auth_permission"} <= set(there):
            return
        cursor.execute(_CONTENT_TYPES, names)
        cursor.execute(_PERMISSIONS, names)
        for table, holder in holders():
            if table in there:
                cursor.execute(_HOLDERS.format(table=schema_editor.quote_name(table), holder=holder), names)


def holders():
    """The tables of who holds permissions, with the column that names the holder."""
    if installed.is_installed("django.contrib.auth"):
        from django.contrib.auth import get_user_model
        from django.contrib.auth.models import Group

        fields = [(Group, "permissions"), (get_user_model(), "user_permissions")]
        for model, name in fields:
            if name in {field.name for field in model._meta.many_to_many}:  # a user model of one's own may have none
                field = model._meta.get_field(name)
                yield field.m2m_db_table(), field.m2m_column_name()


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        CreateWhereMissing(
            name="CacheInvalidation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("cache_name", models.TextField()),
                (
                    "keys",
                    django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), null=True, size=None),
                ),
                (
                    "invalidation_ts",
                    models.BigIntegerField(
                        db_default=django.db.models.expressions.RawSQL(
                            "(extract(epoch from clock_timestamp()) * 1000)::bigint", ()
                        ),
                        help_text="milliseconds since the epoch",
                    ),
                ),
            ],
            options={
                "db_table": "streams_cacheinvalidation",
                "abstract": False,
            },
        ),
        CreateWhereMissing(
            name="AccountDataChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("user_id", models.TextField()),
                ("room_id", models.TextField(null=True)),
                ("data_type", models.TextField()),
            ],
            options={
                "db_table": "streams_accountdatachange",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_accountdata_user")],
            },
        ),
        CreateWhereMissing(
            name="DeviceListChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("entity", models.TextField(help_text="user ID or server name")),
            ],
            options={
                "db_table": "streams_devicelistchange",
                "abstract": False,
                "indexes": [models.Index(fields=["entity"], name="streams_devicelist_entity")],
            },
        ),
        CreateWhereMissing(
            name="FederationItem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("type", models.TextField(help_text="k: EDU with a key, e: EDU, pd: presence with destinations")),
                ("data", models.TextField(help_text="JSON")),
            ],
            options={
                "db_table": "streams_federation",
                "abstract": False,
            },
        ),
        CreateWhereMissing(
            name="GroupChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("group_id", models.TextField()),
                ("user_id", models.TextField()),
                ("type", models.TextField(db_default="membership")),
                ("content", models.TextField(help_text="JSON object")),
            ],
            options={
                "db_table": "streams_groupchange",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_group_user")],
            },
        ),
        CreateWhereMissing(
            name="PresenceDestination",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("destination", models.TextField()),
                ("user_id", models.TextField()),
            ],
            options={
                "db_table": "streams_presencefederation",
                "abstract": False,
            },
        ),
        CreateWhereMissing(
            name="PusherChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("user_id", models.TextField()),
                ("app_id", models.TextField()),
                ("pushkey", models.TextField()),
                ("deleted", models.BooleanField(db_default=False)),
            ],
            options={
                "db_table": "streams_pusherchange",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_pusher_user")],
            },
        ),
        CreateWhereMissing(
            name="PushRuleChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("user_id", models.TextField()),
            ],
            options={
                "db_table": "streams_pushrulechange",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_pushrule_user")],
            },
        ),
        CreateWhereMissing(
            name="TagChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("user_id", models.TextField()),
                ("room_id", models.TextField()),
                ("tags", models.TextField(help_text="JSON object; travels as a string")),
            ],
            options={
                "db_table": "streams_tagchange",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_tag_user")],
            },
        ),
        CreateWhereMissing(
            name="ToDeviceMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("entity", models.TextField(help_text="local user ID or server name")),
            ],
            options={
                "db_table": "streams_todevicemessage",
                "abstract": False,
                "indexes": [models.Index(fields=["entity"], name="streams_todevice_entity")],
            },
        ),
        CreateWhereMissing(
            name="Typing",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("room_id", models.TextField()),
                ("user_ids", django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)),
            ],
            options={
                "db_table": "streams_typing",
                "abstract": False,
            },
        ),
        CreateWhereMissing(
            name="TypingUser",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "room_id", "user_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("room_id", models.TextField()),
                ("user_id", models.TextField()),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField(db_index=True)),
            ],
            options={
                "db_table": "streams_typinguser",
            },
        ),
        CreateWhereMissing(
            name="UserSignatureChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("user_id", models.TextField()),
            ],
            options={
                "db_table": "streams_usersignaturechange",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_usersignature_user")],
            },
        ),
        CreateWhereMissing(
            name="Presence",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("user_id", models.TextField()),
                ("state", models.TextField(help_text="online, offline, unavailable or busy")),
                ("last_active_ts", models.BigIntegerField(db_default=0)),
                ("last_federation_update_ts", models.BigIntegerField(db_default=0)),
                ("last_user_sync_ts", models.BigIntegerField(db_default=0)),
                ("status_msg", models.TextField(null=True)),
                ("currently_active", models.BooleanField(db_default=False)),
            ],
            options={
                "db_table": "streams_presence",
                "abstract": False,
                "indexes": [models.Index(fields=["user_id"], name="streams_presence_user")],
            },
        ),
        CreateWhereMissing(
            name="Receipt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("room_id", models.TextField()),
                ("receipt_type", models.TextField()),
                ("user_id", models.TextField()),
                ("event_id", models.TextField()),
                ("data", models.TextField(db_default="{}", help_text="JSON object")),
            ],
            options={
                "db_table": "streams_receipt",
                "abstract": False,
                "indexes": [models.Index(fields=["room_id", "user_id"], name="streams_receipt_room_user")],
            },
        ),
        *(make_sequence(f"streams_{table}_seq", 2) for table in STORED),
        *(make_sequence(f"streams_{table}_seq", 1) for table in IN_MEMORY),
        migrations.RunPython(copy_permissions, migrations.RunPython.noop),
    ]
