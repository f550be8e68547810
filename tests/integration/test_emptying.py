"""What a test that commits leaves behind: nothing."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection

from events.creating import create_room
from tests.emptying import empty_tables

pytestmark = pytest.mark.django_db(transaction=True)
KEPT = {"django_migrations", "django_content_type", "auth_permission"}


def tables_with_rows() -> set[str]:
    with connection.cursor() as cursor:
        return {
            name
            for name in connection.introspection.table_names(cursor)
            if not cursor.execute(f'SELECT EXISTS (SELECT FROM "{name}")') and cursor.fetchone()[0]
        }


def test_every_table_that_was_written_is_empty():
    create_room("@ann:site").send("@ann:site", "m.room.message", {"body": "x"})
    assert len(tables_with_rows()) > 12
    empty_tables()
    assert tables_with_rows() == KEPT


def test_a_table_that_names_rows_of_another_is_emptied_with_it():
    user = User.objects.create_user("ann")
    user.groups.add(Group.objects.create(name="g"))
    user.user_permissions.add(Permission.objects.first())
    empty_tables()
    assert tables_with_rows() == KEPT


def test_content_types_and_permissions_stay_as_the_migrations_made_them():
    before = (
        list(Permission.objects.values_list("pk", flat=True)),
        list(ContentType.objects.values_list("pk", flat=True)),
    )
    User.objects.create_user("ann")
    empty_tables()
    after = (
        list(Permission.objects.values_list("pk", flat=True)),
        list(ContentType.objects.values_list("pk", flat=True)),
    )
    assert before == after and len(before[0]) > 100
