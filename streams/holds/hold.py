"""SQL for the program's own statements that take IDs before they insert, or that change facts (pure).

An INSERT holds its stream by itself. A statement that takes IDs earlier, in the same transaction, comes after
``WRITE_AS`` and ``hold_sql``.
"""

from __future__ import annotations

from streams.core.declaration import StreamDeclaration, quoted
from streams.holds.installed_sql import MAINTENANCE, WRITER

__all__ = [
    "CHANGE_FACTS",
    "WRITE_AS",
    "hold_sql",
    "remembered_sql",
]

#: SQL expression that names the writer for the rest of the transaction. Parameter: the name.
WRITE_AS = f"set_config('{WRITER}', %(writer)s, true)"
#: Lets the transaction change facts, and choose their IDs, until it ends.
CHANGE_FACTS = f"SET LOCAL {MAINTENANCE} = on"


def hold_sql(declaration: StreamDeclaration) -> str:
    """Returns the statement that holds the stream for the rest of the transaction, and inserts nothing.

    Whoever may insert into the stream's tables may execute it. ``streams_hold(stream)`` is only for whom it is granted to.
    """
    table = declaration.tables[-1]  # the events themselves, which come first, have costlier triggers
    return f"INSERT INTO {quoted(table.name)} ({quoted(table.id_column)}) SELECT 0 WHERE false"


def remembered_sql() -> str:
    """Returns the SQL expression of the bound below which the transaction still holds a stream, or null.

    A rollback to a savepoint takes back what was held since. Parameters: ``stream``, and ``class``, that of the writer.
    """
    number = "(SELECT number FROM streams_held WHERE stream = %(stream)s)"
    return f"nullif(current_setting('streams.held' || {number} || '_' || %(class)s, true), '')::bigint"
