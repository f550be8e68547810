"""A database that cannot hold every text is refused before anything is stored in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def elsewhere(request, database_url: str) -> Iterator[str]:
    """The address of a database in another encoding."""
    name = f"test_{request.param.lower()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0")
    yield f"{database_url.rpartition('/')[0]}/{name}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    "command",
    [
        ("migrate",),
        ("check", "--database", "default"),
        ("health",),
    ],
    ids=lambda command: command[0],
)
def test_commands_refuse_it_and_say_what_to_do(elsewhere, command, run_manage):
    """All went well until the first text came that it cannot hold."""
    done = run_manage(*command, env={"DATABASE_URL": elsewhere}, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode > 0
    assert "has the encoding" in said and "ENCODING 'UTF8' TEMPLATE template0" in said, said
    assert "Traceback" not in said
