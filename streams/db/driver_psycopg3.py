"""The part of ``streams.db.driver`` for psycopg 3. ``streams.db.driver_psycopg2`` has the same names for psycopg2.

Cursors write values into the text of a statement, as the cursors of psycopg2 and of Django do. If values were sent
apart from the text, a message could have only one statement, and statements such as ``EXECUTE`` and ``SET`` could have
no values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import make_conninfo
from psycopg.pq import Format
from psycopg.types.string import TextLoader

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

NAME = "psycopg"
DatabaseError = psycopg.Error
InterfaceError = psycopg.InterfaceError
OperationalError = psycopg.OperationalError
#: The class of the cursors of ``connect``.
Cursor = psycopg.ClientCursor
#: The attribute of an error with its SQLSTATE, which is None if the server did not report the error.
ERROR_CODE = "sqlstate"
#: True if a connection reads ``standard_conforming_strings`` only when it is opened.
READS_STRINGS_ONCE = False


#: Most notices that a connection keeps, as psycopg2 does.
_MOST_NOTICES = 50


class BehindPooler(psycopg.OperationalError):
    """The error if a connection that must be direct leads to a connection pooler."""


class _Connection(psycopg.Connection):
    """A connection that keeps the notifications that arrive while it executes statements, and its last notices."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.received: list[psycopg.Notify] = []
        self.add_notify_handler(self.received.append)
        self.notices: deque[str] = deque(maxlen=_MOST_NOTICES)
        self.add_notice_handler(lambda found: self.notices.append(f"{found.severity}:  {found.message_primary}\n"))


#: Addresses are loaded as text, as by psycopg2 and on Django's connections.
_adapters = AdaptersMap(psycopg.adapters)
for _name in ("inet", "cidr"):
    _adapters.register_loader(_name, TextLoader)


def connect(parameters: dict[str, Any]) -> Any:
    """Opens a connection in autocommit mode."""
    return _Connection.connect(**parameters, autocommit=True, cursor_factory=Cursor, context=_adapters)


def connection_string(parameters: dict[str, Any]) -> str:
    return make_conninfo(**parameters)


def received(connection: Any) -> list[Any]:
    """Returns the list in which a connection of ``connect`` collects notifications.

    The caller removes the notifications that it has handled.
    """
    found: list[Any] = connection.received
    return found


def notices(connection: Any) -> MutableSequence[Any]:
    """Returns the sequence in which a connection of ``connect`` keeps its last notices and warnings. The caller removes them."""
    found: MutableSequence[Any] = connection.notices
    return found


def receive(connection: Any) -> list[Any]:
    """Reads the data that has arrived on a connection of ``connect``, without waiting. Returns the same list as ``received``."""
    pgconn = connection.pgconn
    pgconn.consume_input()
    while (notification := pgconn.notifies()) is not None:
        pgconn.notify_handler(notification)
    return received(connection)


def go_to_last_result(cursor: Any) -> None:
    """Makes the cursor fetch the rows of the last statement, if one message had several statements."""
    while cursor.nextset():
        pass


def bound_times(cursor: Any) -> None:
    loader: Any = cursor.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, Format.TEXT)

    class Bounded(loader):  # what Django has set for this cursor, with its time zone
        def load(self, data: Any) -> Any:
            return bounded(bytes(data).decode(), lambda: loader.load(self, data), psycopg.DataError)

    cursor.adapters.register_loader("timestamptz", Bounded)
