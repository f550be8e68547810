"""The only module that uses the PostgreSQL driver: direct connections, advisory lock keys, connection strings.

Direct connections are for locks and LISTEN. They do not go through a transaction pooler, and a forked child opens its
own. Keepalives make the loss of a host noticed within seconds. All other queries use Django's connection.
"""

from __future__ import annotations

import hashlib
import math
import re
import select
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg2
from django.db import DatabaseError as DjangoDatabaseError
from django.db import OperationalError as DjangoOperationalError
from django.db import connections

from streams.conf import stream_settings
from streams.db import advice
from streams.db.schema_mark import SCHEMA_MARK, marked_channel

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = [
    "IDLE",
    "LOCK_HOLDERS",
    "OPEN",
    "SERVER_KEEPALIVES",
    "SNAPSHOT_LEVELS",
    "BehindPooler",
    "DatabaseError",
    "KeptConnection",
    "OperationalError",
    "Statement",
    "append_key",
    "channel",
    "connection_gone",
    "direct_connection",
    "dsn",
    "execute_prepared",
    "explain",
    "in_transaction",
    "migrate_key",
    "missing",
    "notify_queue_full",
    "notify_queue_usage",
    "past_pooler",
    "publisher_key",
    "read_in_order",
    "reader_key",
    "ready_to_read",
    "recorder_key",
    "schema_mark",
    "send_together",
    "start_key",
    "trim_key",
    "writer_key",
]

DatabaseError = psycopg2.Error
OperationalError = psycopg2.OperationalError


class BehindPooler(psycopg2.OperationalError):
    """The error if a connection that must be direct leads to a connection pooler."""


#: Errors that the driver raises when a connection is lost.
connection_gone = (psycopg2.OperationalError, psycopg2.InterfaceError)
#: Errors for a missing table, sequence or column. Trying again does not help.
missing = (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn)
#: The error when a transaction with a notification commits while the server's queue of notifications is full.
notify_queue_full = psycopg2.errors.ProgramLimitExceeded
#: Values of ``get_transaction_status``: no transaction, and a transaction without an error.
IDLE = psycopg2.extensions.TRANSACTION_STATUS_IDLE
OPEN = (psycopg2.extensions.TRANSACTION_STATUS_INTRANS, psycopg2.extensions.TRANSACTION_STATUS_ACTIVE)
#: Isolation levels whose transactions keep one snapshot.
SNAPSHOT_LEVELS = (
    psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ,
    psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE,
)

#: The client notices that the server's host is lost after 5 + 3 x 2 seconds of silence, or if bytes that it sent are not
#: acknowledged for 11 seconds.
_KEEPALIVES = {
    "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 11_000,
}  # fmt: skip
#: Sets the same limits in the server. Without them the server keeps the locks of a lost host for hours.
SERVER_KEEPALIVES = (
    "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false), "
    "set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '11000', false)"
)
#: Lifts a limit of the server: sessions that wait for notifications or hold a lock may send nothing for hours.
_MAY_BE_IDLE = "set_config('idle_session_timeout', '0', false)"
_NOT_LIBPQ = {
    "cursor_factory",
    "cursor_class",
    "server_side_binding",
    "isolation_level",
    "assume_role",
    "pool",
    "context",
}


def explain(error: BaseException) -> str:
    """Returns the text of a database error as one line. If the remedy is known, the line ends with it."""
    text = " ".join(str(error).split())
    cause = error if isinstance(error, psycopg2.Error) else error.__cause__
    if isinstance(cause, BehindPooler):
        return text
    if isinstance(cause, missing):
        return f"{text}. {advice.about_missing_relation(text)}"
    if isinstance(cause, connection_gone):
        if cure := advice.about_missing_database(text):
            return f"{text.rstrip('.?')}. {cure}"
        if (code := getattr(cause, "pgcode", None)) and not code.startswith(("08", "57P")):
            return f"The database cannot be used: {text}"  # it answers: a full disk, a lock that timed out
        return f"The database cannot be reached: {text.rstrip('.?')}. Start it, or correct DATABASE_URL."
    return text


def _parameters(using: str | None) -> dict[str, Any]:
    wrapper = connections[using or stream_settings().database]
    parameters = {k: v for k, v in wrapper.get_connection_params().items() if k not in _NOT_LIBPQ}
    if direct := wrapper.settings_dict.get("DIRECT", {}):
        parameters |= {name.lower(): value for name, value in direct.items()}  # the server behind a pooler
    return parameters


def direct_connection(using: str | None = None, *, application_name: str) -> Any:
    """Opens a psycopg2 connection to the server of Django's alias, in autocommit mode. The caller must close it.

    Client and server each notice within seconds if the other's host is lost. ``application_name`` is shown in
    ``pg_stat_activity``. Raises ``OperationalError`` if the server cannot be reached, and ``BehindPooler`` if a connection
    pooler answers instead of the server.
    """
    try:
        found = _parameters(using)
    except DjangoOperationalError as error:  # an embedded server that does not start
        raise OperationalError(str(error)) from error
    parameters = {"connect_timeout": 10} | found | _KEEPALIVES | {"application_name": application_name[:63]}
    connection = psycopg2.connect(**parameters)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"{SERVER_KEEPALIVES}, {_MAY_BE_IDLE}, pg_backend_pid()")
            _refuse_pooler(connection, session=cursor.fetchone()[-1])
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_pooler(connection: Any, session: int) -> None:
    """Raises ``BehindPooler`` if the connection leads to a connection pooler.

    ``session`` is the PID of the backend that answered a query. Without a pooler the handshake named the same PID. A
    pooler names a number of its own, and may give each transaction to another session. Then a writer's lock would stay
    with a session that other clients use next, and LISTEN would receive nothing. Neither would raise an error.
    """
    if connection.info.backend_pid != session:
        where = f"{connection.info.host}:{connection.info.port}"
        raise BehindPooler(
            f"A connection pooler answers at {where}, but locks and LISTEN need a session of their own. "
            "Name the PostgreSQL server behind it: REPLSITE_DATABASE_DIRECT=HOST:PORT "
            "(in a project's own settings: the DIRECT entry of the database)."
        )


def ready_to_read(files: Sequence[Any], seconds: float | None) -> list[Any]:
    """Waits until a file, socket or connection is readable, ``seconds`` at most (None: no limit). Returns the readable ones.

    Uses ``select``, which can wait for parts of a millisecond, but raises an error for descriptors from 1,024 on. A server
    with many clients has such descriptors, and the error would fence its writer. For them ``poll`` is used, which waits
    for whole milliseconds.
    """
    by_descriptor = {one if isinstance(one, int) else one.fileno(): one for one in files}
    if max(by_descriptor) < _MOST_OF_SELECT:
        found = select.select(list(by_descriptor), [], [], None if seconds is None else max(seconds, 0.0))[0]
    else:
        waiting = select.poll()
        for descriptor in by_descriptor:
            waiting.register(descriptor, select.POLLIN | select.POLLPRI)
        found = [one for one, _ in waiting.poll(None if seconds is None else math.ceil(max(seconds, 0.0) * 1_000))]
    return [by_descriptor[descriptor] for descriptor in found]


@contextmanager
def past_pooler(using: str) -> Iterator[None]:
    """Connects this thread's Django connection directly to the server while the block runs, without the pooler.

    For long work: without a pooler, temporary tables, settings and prepared statements outlast a transaction. Does
    nothing within a transaction, or if the alias has no ``DIRECT`` entry, which names the server behind a pooler.
    """
    wrapper = connections[using]
    given = wrapper.settings_dict
    if not given.get("DIRECT") or wrapper.in_atomic_block:
        yield
        return
    direct = {name.upper(): value for name, value in given["DIRECT"].items()}
    wrapper.close()
    wrapper.settings_dict = {**given, **direct, "DIRECT": {}}
    try:
        yield
    finally:
        wrapper.close()
        wrapper.settings_dict = given


@contextmanager
def in_transaction(cursor: Any) -> Iterator[None]:
    """Runs the block in a transaction on a direct connection. Commits at the end, and rolls back on any error.

    The isolation level is READ COMMITTED: each statement sees everything that is committed when the statement begins.
    """
    cursor.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        yield
        cursor.execute("COMMIT")
    except BaseException:
        with suppress(DatabaseError, DjangoDatabaseError):  # the connection may be gone, and the transaction with it
            cursor.execute("ROLLBACK")
        raise


def read_in_order(connection: Any) -> None:
    """Makes the session use plain index scans wherever it can. For connections that only read streams by ascending IDs."""
    with connection.cursor() as cursor:
        # JIT must be off, too. If a table has no suitable index, the cost of its plan is now so high that PostgreSQL would
        # compile the plan each time.
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")


#: Connection -> statement -> its EXECUTE call.
_prepared: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
_MOST_PREPARED = 200
#: ``select`` accepts only descriptors below this.
_MOST_OF_SELECT = 1_024
_PARAMETER = re.compile(r"%\((\w+)\)s|%s|%%")


def execute_prepared(cursor: Any, statement: str, parameters: Mapping[str, Any]) -> None:
    """Executes a statement, which is prepared first so that the session plans it only once.

    For statements that are repeated often, because planning most of them takes longer than executing them. The statement
    must declare the types of its parameters. Not for use through a transaction pooler, where the next message may reach
    another session.
    """
    cursor.execute(_prepared_call(cursor, statement) or statement, parameters)


def _known_in(cursor: Any) -> dict[str, str]:
    """Returns ``{statement: EXECUTE call}`` for the statements that this session has prepared."""
    return _prepared.setdefault(cursor.connection, {})


def _prepared_call(cursor: Any, statement: str) -> str | None:
    """Returns the EXECUTE call of a statement. Prepares the statement if the session has not prepared it yet.

    Returns None for a statement that is not prepared, if the session already has ``_MOST_PREPARED`` statements.
    """
    known = _known_in(cursor)
    if (call := known.get(statement)) is not None:
        return call
    if len(known) >= _MOST_PREPARED:  # some code writes values into the text of its statements
        return None
    names: list[str] = []
    places: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        name = found[1] or str(len(names))  # a parameter without a name gets one of its own
        if name not in names:
            names.append(name)
            places.append(found[0])
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(numbered, statement)
    name = f"replsite_{len(known)}"
    # Without this the server makes a new plan for each of the first five executions of a statement.
    cursor.execute("SET plan_cache_mode = force_generic_plan")
    cursor.execute(f"PREPARE {name} AS {text}")
    call = known[statement] = f"EXECUTE {name}" + (f" ({', '.join(places)})" if places else "")
    return call


class Statement(NamedTuple):
    """One of several statements that are sent in one message: its text and its values, by name or in order.

    ``again`` is true if the same text is executed many times, so that it is worth preparing.
    """

    text: str
    values: Mapping[str, Any] | Sequence[Any] = ()
    again: bool = True


def send_together(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[tuple[Any, ...]]:
    """Sends several statements in one message over Django's connection. Returns the rows of the last statement.

    They run in the connection's open transaction, or else in one transaction of their own. Under READ COMMITTED each
    statement sees what was committed when this statement begins. Either all statements have values by name, which they
    may share, or all have values in order. Statements are not prepared if the alias has a ``DIRECT`` entry, because then
    the connection goes through a pooler.
    """
    with connection.cursor() as cursor:
        texts = [one.text for one in statements]
        if not connection.settings_dict.get("DIRECT"):
            known = _known_in(cursor)
            for place, (text, _, again) in enumerate(statements):
                if again:
                    texts[place] = known.get(text) or _prepared_call(cursor, text) or text
        named: dict[str, Any] = {}
        ordered: list[Any] = []
        for one in statements:
            if isinstance(one.values, Mapping):
                named |= one.values
            else:
                ordered += one.values
        cursor.execute("; ".join(texts), named or ordered)
        return cursor.fetchall() if cursor.description is not None else []


class _PreparingCursor(psycopg2.extensions.cursor):
    """A cursor that prepares every statement whose parameters are given by name."""

    _is_preparing = False

    def execute(self, query: Any, vars: Any = None) -> None:
        """Executes a statement as the driver does. If ``vars`` is a dictionary, the statement is prepared."""
        # `execute_prepared` executes on this cursor, so it calls this method again.
        if not isinstance(vars, dict) or self._is_preparing:
            super().execute(query, vars)
            return
        self._is_preparing = True
        try:
            execute_prepared(self, query, vars)
        finally:
            self._is_preparing = False


def notify_queue_usage(cursor: Any) -> float:
    """Cleans the server's queue of notifications, and returns how full it is, from 0 to 1.

    The query removes entries that no session waits for any more. Otherwise the server does so only when it accepts a new
    notification, and a full queue accepts none. So a queue that a listening session has let fill up would stay full even
    after that session ended, until this query is run.
    """
    cursor.execute("SELECT pg_notification_queue_usage()")
    return float(cursor.fetchone()[0])


class KeptConnection:
    """A direct connection that opens when it is first used. After a failure it is closed, and the next use opens another.

    Only one thread at a time may use it. Statements with named parameters are prepared (``execute_prepared``).

    Set ``reads_in_order`` for connections that read facts by ascending IDs in pieces. Otherwise, on a table that was
    filled after its last ANALYZE, PostgreSQL may read and sort the whole table for each piece, instead of using the index.
    """

    def __init__(self, using: str | None, application_name: str, *, reads_in_order: bool = False) -> None:
        self._using = using
        self._application_name = application_name
        self._reads_in_order = reads_in_order
        self._connection: Any = None

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yields a cursor. Raises ``DatabaseError``, also when the server cannot be reached."""
        is_new = self._connection is None
        if is_new:
            self._connection = direct_connection(self._using, application_name=self._application_name)
        try:
            if self._reads_in_order and is_new:
                read_in_order(self._connection)
            with self._connection.cursor(cursor_factory=_PreparingCursor) as cursor:
                yield cursor
        except DatabaseError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            with suppress(DatabaseError):  # it may be gone already
                self._connection.close()
            self._connection = None


def dsn(using: str | None = None) -> str:
    """Returns a libpq connection string for programs without Django, such as Spark executors. It contains the password."""
    return str(psycopg2.extensions.make_dsn(**_parameters(using)))


#: Connection -> the suffix of the schema that holds its site's tables.
_marks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def schema_mark(cursor: Any) -> str:
    """Returns the suffix of channels and locks of this site's schema (``streams.db.schema_mark``).

    The suffix is queried once for each connection.
    """
    connection = cursor.connection
    mark = _marks.get(connection)
    if mark is None:
        with connection.cursor() as asking:
            asking.execute(f"SELECT {SCHEMA_MARK}")
            mark = _marks[connection] = str(asking.fetchone()[0])
    return mark


def channel(cursor: Any, name: str) -> str:
    """Returns the site's channel of that name, for LISTEN and NOTIFY."""
    return marked_channel(name, schema_mark(cursor))


def _key(cursor: Any, kind: str, name: str) -> int:
    """Returns a 64-bit key for an advisory lock of this site. Two names have the same key with a chance of 1 in 10^19."""
    mark = schema_mark(cursor)
    return _key_of(f"replsite.{kind}@{mark}:{name}" if mark else f"replsite.{kind}:{name}")


def _key_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


#: FROM and WHERE of a statement about the sessions ``a`` that hold an advisory lock, except our own. Parameter: the lock's key.
LOCK_HOLDERS = """
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.pid <> pg_backend_pid()
  AND (l.classid::bigint << 32 | l.objid::bigint) = %s
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def writer_key(cursor: Any, instance: str) -> int:
    """Returns the key of the session lock on a writer's name, which the writer's process holds while it lives."""
    return _key(cursor, "writer", instance)


def append_key(cursor: Any, instance: str) -> int:
    """Returns the key of the append lock, which every transaction that appends as this writer holds in shared mode.

    A session that gets the lock in exclusive mode knows that no such transaction is open.
    """
    return _key(cursor, "append", instance)


def reader_key(cursor: Any, reader: str) -> int:
    """Returns the key of the session lock that the process of a named reader holds while it reads."""
    return _key(cursor, "reader", reader)


def recorder_key(cursor: Any, name: str) -> int:
    """Returns the key of the session lock held by the process that records a foreign server under ``name``."""
    return _key(cursor, "recorder", name)


def publisher_key(channel: str) -> int:
    """Returns the key of the session lock held by the server that publishes on a Redis channel.

    The key does not depend on the schema: only one server may publish on a channel, whichever site it belongs to.
    """
    return _key_of(f"replsite.publisher:{channel}")


def trim_key(cursor: Any, stream: str) -> int:
    """Returns the key of the session lock held while a stream is trimmed."""
    return _key(cursor, "trim", stream)


def start_key(cursor: Any, stream: str) -> int:
    """Returns the key of the lock held while a writer enters a stream or its sequence is repaired."""
    return _key(cursor, "start", stream)


def migrate_key(cursor: Any) -> int:
    """Returns the key of the session lock that ``manage.py migrate`` holds."""
    return _key(cursor, "migrate", "")
