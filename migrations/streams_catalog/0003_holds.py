"""PostgreSQL knows the open appends of the homeserver streams, and refuses facts whose IDs nothing holds.

Each table is a transaction of its own, so that an append to several streams waits for one of them at a time.

Older processes: stop them before. They take IDs before they hold a stream, and delete facts without saying so: such statements
are refused by the triggers, and their transactions fail, so nothing is lost. Their other appends go on.
"""

from django.db import migrations

import streams.holds.constraint

#: Table, stream, sequence, whether its rows stay as they are.
TABLES = (
    ("accountdatachange", "account_data", "accountdatachange", True),
    ("cacheinvalidation", "caches", "cacheinvalidation", True),
    ("devicelistchange", "device_lists", "devicelistchange", True),
    ("federation", "federation", "federation", False),
    ("groupchange", "groups", "groupchange", True),
    ("presence", "presence", "presence", False),
    ("presencefederation", "presence_federation", "presencefederation", False),
    ("pusherchange", "pushers", "pusherchange", True),
    ("pushrulechange", "push_rules", "pushrulechange", True),
    ("receipt", "receipts", "receipt", True),
    ("tagchange", "tag_account_data", "accountdatachange", True),
    ("todevicemessage", "to_device", "todevicemessage", True),
    ("typing", "typing", "typing", False),
    ("usersignaturechange", "user_signature", "devicelistchange", True),
)
MODELS = {"federation": "federationitem", "presencefederation": "presencedestination"}


def hold(table, stream, sequence, fixed):
    source, options = f"streams_{sequence}_seq", {} if fixed else {"fixed": False}
    constraint = streams.holds.constraint.StreamHolds(stream=stream, sequence=source, **options)
    return migrations.SeparateDatabaseAndState(
        [
            migrations.RunSQL(
                f"SELECT streams_hold_table('streams_{table}', '{stream}', '{source}', fixed => {fixed})",
                f"SELECT streams_release_table('streams_{table}', '{stream}')",
            )
        ],
        [migrations.AddConstraint(MODELS.get(table, table), constraint)],
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("streams_catalog", "0002_start_above_empty"), ("streams", "0025_holds_installed")]

    operations = [hold(*table) for table in TABLES]
