"""A database from before ``Event.state_group``: its rows keep their groups on the way up and on the way back."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test.utils import CaptureQueriesContext

from events.models import Event
from tests.support.stored_rooms import WRITER, groups_of_events

pytestmark = pytest.mark.django_db(transaction=True)  # an index is made concurrently

BEFORE = [("events", "0003_erased_users"), ("state", "0001_initial")]


def migrate(targets):
    executor = MigrationExecutor(connection)
    executor.migrate(targets)


def everything():
    return MigrationExecutor(connection).loader.graph.leaf_nodes()


def store(event_id, position, group=None):
    event = Event(
        stream_ordering=position, instance_name=WRITER, event_id=event_id, room_id="!r:a", type="m.a", sender="@a:a",
        topological_ordering=1, origin_server_ts=1, state_group=group,
    )  # fmt: skip
    Event.objects.writable().bulk_create([event])


def old_rows():
    with connection.cursor() as cursor:
        cursor.execute("SELECT event_id, state_group FROM state_eventstategroup ORDER BY 1")
        return cursor.fetchall()


def test_groups_survive_the_way_back_and_up_again():
    store("$known", 2, group=5)
    store("$unknown", 3)
    migrate(BEFORE)
    assert old_rows() == [("$known", 5)]
    migrate(everything())
    assert groups_of_events(["$known", "$unknown"]) == {"$known": 5}


def test_table_is_dropped_only_when_the_column_is_filled():
    migrate(BEFORE)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        migrate(everything())
    statements = [query["sql"] for query in queries]
    filled = next(n for n, sql in enumerate(statements) if "UPDATE events_event e SET state_group" in sql)
    dropped = next(n for n, sql in enumerate(statements) if "DROP TABLE" in sql and "state_eventstategroup" in sql)
    assert filled < dropped


def test_event_without_a_group_is_left_out():
    store("$a", 2, group=5)
    store("$b", 3)
    assert groups_of_events(["$a", "$b", "$c"]) == {"$a": 5}
