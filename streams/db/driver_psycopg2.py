"""The part of ``streams.db.driver`` for psycopg2. ``streams.db.driver_psycopg3`` has the same names for psycopg 3."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

import psycopg2
import psycopg2.extensions

from streams.runtime.moments import bounded

__all__ = [
    "ERROR_CODE",
    "NAME",
    "READS_STRINGS_ONCE",
    "BehindPooler",
    "Cursor",
    "DatabaseError",
    "InterfaceError",
    "OperationalError",
    "bound_times",
    "connect",
    "connection_string",
    "go_to_last_result",
    "notices",
    "receive",
    "received",
]

NAME = "psycopg2"
DatabaseError = psycopg2.Error
InterfaceError = psycopg2.InterfaceError
OperationalError = psycopg2.OperationalError
#: The class of the cursors of ``connect``.
Cursor = psycopg2.extensions.cursor
#: The attribute of an error with its SQLSTATE, which is None if the server did not report the error.
ERROR_CODE = "pgcode"
#: True if a connection reads ``standard_conforming_strings`` only when it is opened.
READS_STRINGS_ONCE = True


_TIMESTAMPTZ = (1184,)


class BehindPooler(psycopg2.OperationalError):
    """The error if a connection that must be direct leads to a connection pooler."""


def connect(parameters: dict[str, Any]) -> Any:
    """Opens a connection in autocommit mode."""
    connection = psycopg2.connect(**parameters)
    connection.autocommit = True
    return connection


def connection_string(parameters: dict[str, Any]) -> str:
    return str(psycopg2.extensions.make_dsn(**parameters))


def received(connection: Any) -> list[Any]:
    """Returns the list in which a connection of ``connect`` collects notifications.

    The caller removes the notifications that it has handled.
    """
    found: list[Any] = connection.notifies
    return found


def notices(connection: Any) -> MutableSequence[Any]:
    """Returns the sequence in which a connection of ``connect`` keeps its last notices and warnings. The caller removes them."""
    found: MutableSequence[Any] = connection.notices
    return found


def receive(connection: Any) -> list[Any]:
    """Reads the data that has arrived on a connection of ``connect``, without waiting. Returns the same list as ``received``."""
    connection.poll()
    return received(connection)


def go_to_last_result(cursor: Any) -> None:
    """Does nothing: of several statements in one message, psycopg2 keeps only the rows of the last one."""


def bound_times(cursor: Any) -> None:
    def load(text: str | None, of: Any) -> Any:
        make: Any = psycopg2.extensions.PYDATETIMETZ
        return None if text is None else bounded(text, lambda: make(text, of))

    psycopg2.extensions.register_type(psycopg2.extensions.new_type(_TIMESTAMPTZ, "BOUNDED", load), cursor)
