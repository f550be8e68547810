"""The plain homeserver streams; those in memory have UNLOGGED tables."""

import django.contrib.postgres.fields
import django.db.models.functions.datetime
from django.db import migrations, models

IN_MEMORY = ("federation", "presencefederation", "typing")
STORED = (
    "accountdatachange", "devicelistchange", "groupchange", "presence", "pusherchange", "pushrulechange", "receipt",
    "todevicemessage",
)


def make_sequence(name, first):
    """Position 1 of a stored stream means "empty", so its first ID is 2; one in memory begins at 0."""
    take_one = f"SELECT nextval('{name}')" if first == 2 else "SELECT 1"
    return migrations.RunSQL([f"CREATE SEQUENCE {name} AS bigint", take_one], f"DROP SEQUENCE {name}")


def make_unlogged(table):
    """What is in memory elsewhere need not survive a crash, and costs no log."""
    return migrations.RunSQL(f"ALTER TABLE {table} SET UNLOGGED", migrations.RunSQL.noop)


class Migration(migrations.Migration):

    dependencies = [
        ('streams', '0003_facts_resolved'),
    ]

    operations = [
        migrations.CreateModel(
            name='AccountDataChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('user_id', models.TextField()),
                ('room_id', models.TextField(null=True)),
                ('data_type', models.TextField()),
            ],
            options={
                'db_table': 'streams_accountdatachange',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='DeviceListChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('entity', models.TextField(help_text='user ID or server name')),
            ],
            options={
                'db_table': 'streams_devicelistchange',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='FederationItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('type', models.TextField(help_text='k: EDU with a key, e: EDU, pd: presence with destinations')),
                ('data', models.TextField(help_text='JSON')),
            ],
            options={
                'db_table': 'streams_federation',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='GroupChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('group_id', models.TextField()),
                ('user_id', models.TextField()),
                ('type', models.TextField(db_default='membership')),
                ('content', models.TextField(help_text='JSON object')),
            ],
            options={
                'db_table': 'streams_groupchange',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='PresenceDestination',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('destination', models.TextField()),
                ('user_id', models.TextField()),
            ],
            options={
                'db_table': 'streams_presencefederation',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='PusherChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('user_id', models.TextField()),
                ('app_id', models.TextField()),
                ('pushkey', models.TextField()),
                ('deleted', models.BooleanField(db_default=False)),
            ],
            options={
                'db_table': 'streams_pusherchange',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='PushRuleChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('user_id', models.TextField()),
            ],
            options={
                'db_table': 'streams_pushrulechange',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='TagChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('user_id', models.TextField()),
                ('room_id', models.TextField()),
                ('tags', models.TextField(help_text='JSON object; travels as a string')),
            ],
            options={
                'db_table': 'streams_tagchange',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='ToDeviceMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('entity', models.TextField(help_text='local user ID or server name')),
            ],
            options={
                'db_table': 'streams_todevicemessage',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='Typing',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('room_id', models.TextField()),
                ('user_ids', django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)),
            ],
            options={
                'db_table': 'streams_typing',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='TypingUser',
            fields=[
                ('pk', models.CompositePrimaryKey('room_id', 'user_id', blank=True, editable=False, primary_key=True, serialize=False)),
                ('room_id', models.TextField()),
                ('user_id', models.TextField()),
                ('since', models.DateTimeField()),
                ('until', models.DateTimeField(db_index=True)),
            ],
            options={
                'db_table': 'streams_typinguser',
            },
        ),
        migrations.CreateModel(
            name='UserSignatureChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('user_id', models.TextField()),
            ],
            options={
                'db_table': 'streams_usersignaturechange',
                'abstract': False,
            },
        ),
        migrations.AddField(
            model_name='streamposition',
            name='generation',
            field=models.BigIntegerField(db_default=0, help_text='how often a stream in memory has begun anew'),
        ),
        migrations.CreateModel(
            name='Presence',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('user_id', models.TextField()),
                ('state', models.TextField(help_text='online, offline, unavailable or busy')),
                ('last_active_ts', models.BigIntegerField(db_default=0)),
                ('last_federation_update_ts', models.BigIntegerField(db_default=0)),
                ('last_user_sync_ts', models.BigIntegerField(db_default=0)),
                ('status_msg', models.TextField(null=True)),
                ('currently_active', models.BooleanField(db_default=False)),
            ],
            options={
                'db_table': 'streams_presence',
                'abstract': False,
                'indexes': [models.Index(fields=['user_id'], name='streams_presence_user')],
            },
        ),
        migrations.CreateModel(
            name='Receipt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stream_id', models.BigIntegerField(db_index=True)),
                ('instance_name', models.TextField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('room_id', models.TextField()),
                ('receipt_type', models.TextField()),
                ('user_id', models.TextField()),
                ('event_id', models.TextField()),
                ('data', models.TextField(db_default='{}', help_text='JSON object')),
            ],
            options={
                'db_table': 'streams_receipt',
                'abstract': False,
                'indexes': [models.Index(fields=['room_id', 'user_id'], name='streams_receipt_room_user')],
            },
        ),
        *(make_sequence(f"streams_{table}_seq", 2) for table in STORED),
        *(make_sequence(f"streams_{table}_seq", 1) for table in IN_MEMORY),
        *(make_unlogged(f"streams_{table}") for table in (*IN_MEMORY, "typinguser")),
    ]
