"""Functions and views of the database are those of the program's text, which migrations have put there as text of their own."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from django.db import connection

from events.persist.naming_sql import EVENTS_NAMING
from events.reading.page_sql import PAGE_AFTER, PAGE_BEFORE
from events.visibility.predicate_sql import ACCESS, MEMBERSHIP_AT, ROOM_ACCESS, VISIBLE_EVENT
from streams.holds import installed_sql

pytestmark = pytest.mark.django_db

_DEFINITIONS = """
SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND prokind = 'f'
UNION ALL
SELECT oid::regclass::text, pg_get_viewdef(oid) FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'v'
"""


def definitions() -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(_DEFINITIONS)
        return dict(cursor.fetchall())


@pytest.mark.parametrize(
    "statement",
    [MEMBERSHIP_AT, ROOM_ACCESS, VISIBLE_EVENT, ACCESS, PAGE_BEFORE, PAGE_AFTER, EVENTS_NAMING],
    ids=lambda statement: re.search(r"events_\w+", statement)[0],
)
def test_migrations_install_what_the_program_has(statement):
    """Who changes a text of the program adds a migration with the new text, by ``CREATE OR REPLACE``."""
    installed = definitions()
    with connection.cursor() as cursor:
        cursor.execute(re.sub(r"^\s*CREATE ", "CREATE OR REPLACE ", statement))
    assert definitions() == installed


def test_the_functions_of_holds_are_those_of_the_program():
    """They make a table, too, so their text is compared and not run again."""
    view = re.compile(r"CREATE OR REPLACE VIEW.*?;\n", re.DOTALL)
    migrated = import_module("migrations.streams.0027_guards").FUNCTIONS
    assert view.sub("", migrated) == view.sub("", installed_sql.FUNCTIONS)
    newest = import_module("migrations.streams.0031_holders_at_once").VIEW
    assert view.findall(newest) == view.findall(installed_sql.FUNCTIONS) != []
    assert import_module("migrations.streams.0025_holds_installed").DROP == installed_sql.DROP
