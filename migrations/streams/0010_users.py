"""What the plain streams hold of one user is found by an index: a first sync answer asks for all of it."""

from __future__ import annotations

from django.db import migrations, models

_INDEXES = (
    ("accountdatachange", "user_id", "streams_accountdata_user"),
    ("devicelistchange", "entity", "streams_devicelist_entity"),
    ("groupchange", "user_id", "streams_group_user"),
    ("pusherchange", "user_id", "streams_pusher_user"),
    ("pushrulechange", "user_id", "streams_pushrule_user"),
    ("tagchange", "user_id", "streams_tag_user"),
    ("todevicemessage", "entity", "streams_todevice_entity"),
    ("usersignaturechange", "user_id", "streams_usersignature_user"),
)


class Migration(migrations.Migration):
    dependencies = [("streams", "0009_epoch_successor")]

    operations = [
        migrations.AddIndex(model, models.Index(fields=[column], name=name)) for model, column, name in _INDEXES
    ]
