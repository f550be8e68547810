"""Opens the connections of Spark's driver and tasks, which connect without Django.

The database driver for bulk reads is imported only in the function that uses it. An import at the top of the module
would add a second to the start of every command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from streams.db.session_settings import with_relied_on
from streams.jobs.errors import UnusableArguments

__all__ = ["connect", "connect_arrow"]

_CONNECT_SECONDS = 10


def connect(dsn: str, application_name: str) -> Any:
    """Opens a connection of psycopg2. Its session has what our statements rely on, whatever its role has for sessions.

    Raises ``UnusableArguments`` for a malformed connection string, for several hosts of which any may be meant, and for a
    connection pooler, and errors of the driver.
    """
    try:
        return psycopg2.connect(_parameters(dsn, application_name))
    except psycopg2.OperationalError as error:
        if "unsupported startup parameter" not in str(error):
            raise
        raise UnusableArguments(
            "The connection string leads to a connection pooler, which refuses the settings that each session relies on: "
            f"{str(error).strip()}. Give the address of PostgreSQL itself, as in REPLSITE_DATABASE_DIRECT."
        ) from error


def connect_arrow(dsn: str, application_name: str, *, autocommit: bool = False) -> Any:
    """Opens a connection of the driver for bulk reads, otherwise as ``connect`` does."""
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - slow, see the module's docstring

    return dbapi.connect(_parameters(dsn, application_name), autocommit=autocommit)


def _parameters(dsn: str, application_name: str) -> str:
    try:
        given = parse_dsn(dsn)
        options = str(given.get("options") or os.environ.get("PGOPTIONS", ""))
        _refuse_any_of_several(given)
        return make_dsn(
            dsn,
            application_name=application_name,
            connect_timeout=_CONNECT_SECONDS,
            client_encoding="UTF8",
            options=with_relied_on(options),
        )
    except psycopg2.ProgrammingError:  # its message has a piece of the string, perhaps of the password
        raise UnusableArguments(
            "The connection string of the database cannot be read; it is not repeated here, because of its password. "
            "Give a postgresql:// URL or key=value pairs."
        ) from None


def _refuse_any_of_several(given: Mapping[str, str]) -> None:
    # Positions would be read of one server, and rows perhaps of another that is behind: its missing facts would be passed over.
    hosts = [given.get(name) or os.environ.get(f"PG{name.upper()}", "") for name in ("host", "hostaddr")]
    wanted = given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    if any("," in names for names in hosts) and wanted not in ("primary", "read-write"):
        raise UnusableArguments(
            "The connection string has several hosts, and each connection could reach another one. Add "
            "target_session_attrs=read-write, or give one host."
        )
