"""A role that may only read, and what it says to channels that are not its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import Database

from streams.db import driver

PASSWORD = "reads-only"


@contextmanager
def reading_role(schema: str = "public") -> Iterator[str]:
    """The name of a role that may connect and read every table, and write none."""
    name = f"only_reads_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        cursor.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        cursor.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    try:
        yield name
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@contextmanager
def forger() -> Iterator[Any]:
    """A cursor of a session of such a role."""
    with reading_role() as name, closing(connect_as(name)) as own, own.cursor() as cursor:
        yield cursor


def connect_as(role: str) -> Any:
    """A session of that role, in autocommit mode."""
    connection.ensure_connection()
    made = Database.connect(driver.dsn(), user=role, password=PASSWORD)
    made.autocommit = True
    return made


def forge(cursor: Any, payload: str, channel: str = "replsite_streams") -> None:
    """Say something to a channel."""
    cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])
