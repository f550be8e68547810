"""A server that ends transactions in which nothing happens for seconds, and the wait for just that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import Database

from tests.support.waiting import wait_until

__all__ = ["impatient", "wait_for_the_limit"]

#: Long enough that no transaction of a room is idle for so long on a busy machine while Python works.
LIMIT_SECONDS = 4
_WAITING = """
SELECT pid, extract(epoch FROM clock_timestamp() - state_change) FROM pg_stat_activity
WHERE datname = %s AND state LIKE 'idle in transaction%%' AND pid <> pg_backend_pid()
"""


@contextmanager
def impatient(name: str = "", **limits: str) -> Iterator[None]:
    """New sessions in the database, ours if none is named, have the limit that is shipped, only shorter; or these limits."""
    given = limits or {"idle_in_transaction_session_timeout": f"{LIMIT_SECONDS}s"}
    with connection.cursor() as cursor:
        database = connection.ops.quote_name(name or connection.settings_dict["NAME"])
        for limit, value in given.items():
            cursor.execute(f"ALTER DATABASE {database} SET {limit} = '{value}'")
    connection.close()
    try:
        yield
    finally:
        connection.close()
        with connection.cursor() as cursor:
            for limit in given:
                cursor.execute(f"ALTER DATABASE {database} RESET {limit}")
        connection.close()


def wait_for_the_limit(name: str = "") -> None:
    """Until each transaction that waits now in the database has waited for longer than the limit, or was ended by the server."""
    where = connection.settings_dict
    server = {key.lower(): where[key] for key in ("HOST", "PORT", "USER", "PASSWORD")}
    with closing(Database.connect(**server, dbname="postgres")) as looking, looking.cursor() as cursor:
        looking.autocommit = True

        def waiting() -> dict[int, Any]:
            cursor.execute(_WAITING, [name or where["NAME"]])
            return dict(cursor.fetchall())

        first = wait_until(waiting, what="a transaction that waits")
        wait_until(lambda: all(waiting().get(pid, 99) > 1.5 * LIMIT_SECONDS for pid in first))
