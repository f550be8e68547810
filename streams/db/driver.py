"""The only module that uses the PostgreSQL driver: direct connections, advisory lock keys, connection strings.

Direct connections are for locks and LISTEN. They are opened after fork, with keepalives so that the loss of a host is
noticed, and not through a transaction pooler. All other queries use Django's connection.
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
    """A connection that was to be direct leads to a connection pooler."""


#: Errors that the driver raises when a connection is lost.
connection_gone = (psycopg2.OperationalError, psycopg2.InterfaceError)
#: Errors for a missing table, sequence or column: waiting does not help.
missing = (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn)
#: The error at the commit of a notification when the server's queue is full.
notify_queue_full = psycopg2.errors.ProgramLimitExceeded
#: Values of ``get_transaction_status``: no transaction, and a transaction without an error.
IDLE = psycopg2.extensions.TRANSACTION_STATUS_IDLE
OPEN = (psycopg2.extensions.TRANSACTION_STATUS_INTRANS, psycopg2.extensions.TRANSACTION_STATUS_ACTIVE)
#: Isolation levels whose transactions keep one snapshot.
SNAPSHOT_LEVELS = (
    psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ,
    psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE,
)

#: The loss of the server's host is noticed after 5 + 3 x 2 seconds of silence, or as long with unacknowledged bytes.
_KEEPALIVES = {
    "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 11_000,
}  # fmt: skip
#: Name: the same limits for the server. Without them it keeps the locks of a lost host for hours.
SERVER_KEEPALIVES = (
    "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false), "
    "set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '11000', false)"
)
#: Sessions that wait for notifications, or hold a lock, send nothing for hours.
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
    """Returns the text of a database error on one line, with what to do if that is known."""
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
    """Returns a new psycopg2 connection in autocommit mode to the server behind Django's alias. The caller closes it.

    Both sides notice within seconds if the other's host is lost. ``application_name`` is shown in ``pg_stat_activity``.

    Raises ``OperationalError`` when the server cannot be reached, and ``BehindPooler`` when a pooler answers in its place.
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
    """Raises ``BehindPooler`` unless ``session``, the backend that answered a query, is the one named in the handshake.

    A pooler names a number of its own in the handshake, and gives each transaction to another session. A writer would
    take its lock in one session and lose it to the next client, and LISTEN would receive nothing: both without an error.
    """
    if connection.info.backend_pid != session:
        where = f"{connection.info.host}:{connection.info.port}"
        raise BehindPooler(
            f"A connection pooler answers at {where}, but locks and LISTEN need a session of their own. "
            "Name the PostgreSQL server behind it: REPLSITE_DATABASE_DIRECT=HOST:PORT "
            "(in a project's own settings: the DIRECT entry of the database)."
        )


def ready_to_read(files: Sequence[Any], seconds: float | None) -> list[Any]:
    """Waits until a file, socket or connection is readable, ``seconds`` at most (None: no limit). Returns those that are.

    ``select`` can wait for parts of a millisecond, but refuses descriptors from 1,024 on. A server with many clients has
    such descriptors, and a writer in it would be fenced. ``poll`` takes them, and waits for whole milliseconds.
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
    """Connects this thread's Django connection to the server itself, if the alias names one behind a pooler (``DIRECT``).

    For long work: temporary tables, settings and prepared statements outlast a transaction only there. Does nothing
    within a transaction.
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
    """Runs the block in a transaction on a direct connection: commits at the end, rolls back on any error.

    So no transaction stays open. READ COMMITTED: each of its statements sees everything that is committed when it begins.
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
    """Makes the session use index scans only. For connections that only read streams by ascending IDs."""
    with connection.cursor() as cursor:
        # With these off, a table without a fitting index gets such a high cost that its plan would be JIT-compiled each time.
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")


#: Connection -> statement -> its EXECUTE call.
_prepared: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
_MOST_PREPARED = 200
#: ``select`` takes descriptors below this.
_MOST_OF_SELECT = 1_024
_PARAMETER = re.compile(r"%\((\w+)\)s|%s|%%")


def execute_prepared(cursor: Any, statement: str, parameters: Mapping[str, Any]) -> None:
    """Executes a statement that this session plans only once. For statements that a direct connection repeats often.

    Planning most of our statements takes longer than executing them. Parameters are named, and the statement must declare
    their types. Not for use through a transaction pooler, where the next message may reach another session.
    """
    cursor.execute(_prepared_call(cursor, statement) or statement, parameters)


def _known_in(cursor: Any) -> dict[str, str]:
    """Returns ``{statement: EXECUTE call}`` for the statements that this session has prepared."""
    return _prepared.setdefault(cursor.connection, {})


def _prepared_call(cursor: Any, statement: str) -> str | None:
    """Returns the EXECUTE call of a statement, and prepares it if it is new. None if the session has prepared too many."""
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
        name = found[1] or str(len(names))  # each parameter without a name is distinct
        if name not in names:
            names.append(name)
            places.append(found[0])
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(numbered, statement)
    name = f"replsite_{len(known)}"
    # Without this the server plans the first five executions of each statement again.
    cursor.execute("SET plan_cache_mode = force_generic_plan")
    cursor.execute(f"PREPARE {name} AS {text}")
    call = known[statement] = f"EXECUTE {name}" + (f" ({', '.join(places)})" if places else "")
    return call


class Statement(NamedTuple):
    """One of several statements of a message: its text with its values, named or in order.

    ``again``: the same text is executed many times, so it is worth preparing once a session.
    """

    text: str
    values: Mapping[str, Any] | Sequence[Any] = ()
    again: bool = True


def send_together(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[tuple[Any, ...]]:
    """Sends statements in one message over Django's connection, in its open transaction. Returns the rows of the last one.

    Under READ COMMITTED each sees what was committed when it begins. Either all have named values, which they may share,
    or all have values in order. Nothing is prepared behind a pooler (``DIRECT`` of the alias).
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
    """A cursor that prepares every statement with named parameters."""

    _is_preparing = False

    def execute(self, query: Any, vars: Any = None) -> None:
        """Executes as the driver does, through ``execute_prepared`` for named parameters."""
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
    """Returns how full the server's queue of notifications is, from 0 to 1, after it was cleaned up.

    The query itself removes entries that no session waits for any more. Otherwise the server does so only when it accepts
    a notification: a session that listens in a transaction lets the queue fill, and the session ends. Since the queue is
    full, no notification is accepted, and it stays full until this query is run.
    """
    cursor.execute("SELECT pg_notification_queue_usage()")
    return float(cursor.fetchone()[0])


class KeptConnection:
    """A direct connection that is opened when it is needed and closed when it fails. The next use then opens another.

    For one thread at a time. Statements with named parameters are planned once (``execute_prepared``).

    ``reads_in_order`` is for connections that read facts by ascending IDs in pieces. On a table that was filled since its
    last ANALYZE, the planner would otherwise read and sort the whole table for each piece, instead of using the index.
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


#: Connection -> the mark of the schema of its site's tables.
_marks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def schema_mark(cursor: Any) -> str:
    """Returns the schema's suffix for channels and locks (``streams.db.schema_mark``). Queried once for each connection."""
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
    """Returns a 64-bit key for an advisory lock of this site. Two names share one with a chance of 1 in 10^19."""
    mark = schema_mark(cursor)
    return _key_of(f"replsite.{kind}@{mark}:{name}" if mark else f"replsite.{kind}:{name}")


def _key_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


#: Part of a statement: the sessions ``a``, except our own, that hold the advisory lock whose key is the parameter.
LOCK_HOLDERS = """
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.pid <> pg_backend_pid()
  AND (l.classid::bigint << 32 | l.objid::bigint) = %s
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def writer_key(cursor: Any, instance: str) -> int:
    """Returns the key of the session lock that the owner of a writer name holds while its process lives."""
    return _key(cursor, "writer", instance)


def append_key(cursor: Any, instance: str) -> int:
    """Returns the key of the lock that every transaction appending as this writer shares.

    A session that gets it exclusively knows that no such transaction is open.
    """
    return _key(cursor, "append", instance)


def reader_key(cursor: Any, reader: str) -> int:
    """Returns the key of the session lock that the process of a named reader holds."""
    return _key(cursor, "reader", reader)


def recorder_key(cursor: Any, name: str) -> int:
    """Returns the key of the session lock of the process that records a foreign server under ``name``."""
    return _key(cursor, "recorder", name)


def publisher_key(channel: str) -> int:
    """Returns the key of the session lock of the server that publishes on a Redis channel.

    It does not depend on the schema: one server publishes on a channel, whatever site it belongs to.
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
