"""Tables of the homeserver streams, which were of the app ``streams`` in the version before, move to an app of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment import older
from tests.deployment.conftest import Production, made_by_the_page

_MAKE_STAFF = """
from django.contrib.auth.models import Group, Permission, User
may = Permission.objects.get(codename="view_presence")
group = Group.objects.create(name="watchers")
group.permissions.add(may)
ann, ben = (User.objects.create_user(name, is_staff=True) for name in ("ann", "ben"))
ann.groups.add(group)
ben.user_permissions.add(Permission.objects.get(codename="view_receipt"))
"""
_WHAT_STAFF_MAY = """
from django.contrib.auth.models import User
ann, ben = (User.objects.get(username=name) for name in ("ann", "ben"))
print(ann.has_perm("streams_catalog.view_presence"), ann.has_perm("streams.view_presence"))
print(ben.has_perm("streams_catalog.view_receipt"), ben.has_perm("streams_catalog.view_presence"))
"""
_WRITE = """
INSERT INTO streams_presence (stream_id, instance_name, user_id, state)
SELECT nextval('streams_presence_seq'), 'master', '@u' || n || ':x', 'online' FROM generate_series(1, 40) n;
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name)
SELECT nextval('streams_cacheinvalidation_seq'), 'master', 'c' FROM generate_series(1, 40) n;
INSERT INTO streams_typing (stream_id, instance_name, room_id, user_ids)
VALUES (nextval('streams_typing_seq'), 'master', '!r:x', '{@u:x}');
"""
#: Sequences get a new file when their start is altered; their values are compared.
_TABLES = """
SELECT relname, relfilenode, relpersistence FROM pg_class WHERE relname LIKE 'streams\\_%' AND relkind NOT IN ('S', 'i')
   AND relname !~ 'streams_(instance|writerresolution)' ORDER BY 1
"""
_ROWS = "SELECT (SELECT count(*) FROM streams_presence), (SELECT count(*) FROM streams_cacheinvalidation)"
_LAST = """
SELECT sequencename, last_value FROM pg_sequences
 WHERE sequencename ~ '^streams_.*_seq$' AND sequencename !~ 'writerresolution' ORDER BY 1
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the version before."""
    folder = tmp_path_factory.mktemp("before")
    older.unpack(folder)
    return folder


@pytest.fixture
def database(server, before: Path) -> Iterator[Production]:
    """A database as the version before made it."""
    with made_by_the_page(server, "_catalog", before) as made:
        yield made


def asked(database: Production, *questions: str) -> list[list[tuple]]:
    with database.session("replsite_owner") as cursor:
        answers = []
        for question in questions:
            cursor.execute(question)
            answers.append(cursor.fetchall())
        return answers


@pytest.mark.scenario
def test_a_site_keeps_every_row_sequence_and_permission(database, before):
    with database.session("replsite_owner") as cursor:
        cursor.execute(_WRITE)
    database.manage("shell", "-c", _MAKE_STAFF, role="replsite_owner", folder=before)
    tables, rows, last = asked(database, _TABLES, _ROWS, _LAST)
    assert rows == [(40, 40)] and len(last) > 12
    database.manage("migrate", "-v", "0", role="replsite_owner")
    tables_now, rows_now, last_now = asked(database, _TABLES, _ROWS, _LAST)
    assert rows_now == rows and set(last) <= set(last_now)
    assert set(tables) <= set(tables_now)  # none was made anew or written again
    said = database.manage("shell", "-v", "0", "-c", _WHAT_STAFF_MAY, role="replsite_owner").stdout.split()
    assert said == ["True", "True", "True", "False"]
    database.manage("migrate", "-v", "0", "streams_catalog", "zero", role="replsite_owner")
    assert asked(database, _ROWS) == [rows]  # a site that goes back needs them
    database.manage("migrate", "-v", "0", role="replsite_owner")
    rows_now, last_now = asked(database, _ROWS, _LAST)
    assert rows_now == rows and set(last) <= set(last_now)


@pytest.mark.scenario
def test_tables_of_an_update_equal_those_of_a_new_site(server, database):
    """From the version before and from nothing: the same columns, indexes, sequences and storage."""
    described = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
        "WHERE table_schema = 'public' ORDER BY 1, 2",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        "SELECT relname, relpersistence, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
        "SELECT sequencename, data_type::text, start_value, last_value FROM pg_sequences ORDER BY 1",
    )
    database.manage("migrate", "-v", "0", role="replsite_owner")
    updated = asked(database, *described)
    with made_by_the_page(server, "_new") as new:
        made = asked(new, *described)
    own = lambda rows: {row for row in rows if str(row[0]).startswith("streams_") or " public.streams_" in str(row[0])}  # noqa: E731
    for before_and_now, from_nothing in zip(updated, made, strict=True):
        assert own(before_and_now) - own(from_nothing) <= {
            row
            for row in own(before_and_now)
            if "known_done_ids" in row  # of the version before; old processes fill it
        }
        assert own(from_nothing) <= own(before_and_now)
