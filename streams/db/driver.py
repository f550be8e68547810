"""The one module that knows the PostgreSQL driver: direct connections, advisory lock keys, connection strings.

Direct connections are for locks and LISTEN: opened after fork, with keepalives so that the loss of a host is noticed, and not
through a transaction pooler. Everything else goes through Django's connection.
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
    "FROZEN",
    "IDLE",
    "LOCK_HOLDERS",
    "OPEN",
    "SERVER_KEEPALIVES",
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


#: What the driver raises when a connection is no longer there.
connection_gone = (psycopg2.OperationalError, psycopg2.InterfaceError)
#: What it raises for a table, a sequence or a column that is not there: waiting does not help.
missing = (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn)
#: What it raises at the commit of a notification for which the server has no room.
notify_queue_full = psycopg2.errors.ProgramLimitExceeded
#: What ``get_transaction_status`` says of a connection without a transaction, and of one with a transaction that is whole.
IDLE = psycopg2.extensions.TRANSACTION_STATUS_IDLE
OPEN = (psycopg2.extensions.TRANSACTION_STATUS_INTRANS, psycopg2.extensions.TRANSACTION_STATUS_ACTIVE)
#: Isolation levels whose transactions see the database as it was.
FROZEN = (psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ, psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE)

#: The loss of the server's host is noticed after 5 + 3 x 2 seconds of silence, or after as long with bytes that nobody takes.
_KEEPALIVES = {
    "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 11_000,
}  # fmt: skip
#: Name: the same for the other direction: without it a server keeps the locks of a lost host for hours.
SERVER_KEEPALIVES = (
    "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false), "
    "set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '11000', false)"
)
#: Sessions that wait for notifications, or hold a lock, say nothing for hours.
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
    """The server's or the driver's words, and what to do where that is known; for the last line of a command."""
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
            return f"The database cannot be used: {text}"  # it answers: its disk is full, a lock was not had in time
        return f"The database cannot be reached: {text.rstrip('.?')}. Start it, or correct DATABASE_URL."
    return text


def _parameters(using: str | None) -> dict[str, Any]:
    wrapper = connections[using or stream_settings().database]
    parameters = {k: v for k, v in wrapper.get_connection_params().items() if k not in _NOT_LIBPQ}
    if direct := wrapper.settings_dict.get("DIRECT", {}):
        parameters |= {name.lower(): value for name, value in direct.items()}  # HOST and PORT behind a pooler
    return parameters


def direct_connection(using: str | None = None, *, application_name: str) -> Any:
    """A new psycopg2 connection of the caller's own, in autocommit mode, to the server behind Django's alias.

    Either side notices within seconds when the other's host is lost.

    Raises ``OperationalError`` when the server cannot be reached, and ``BehindPooler`` when a pooler answers in its place.
    ``application_name`` shows in ``pg_stat_activity``.
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
    """Raise ``BehindPooler`` unless the session that answers is the one that the connection was greeted by.

    A pooler greets its clients with a number of its own, and hands each transaction to another session. A writer would take
    its lock in one session and lose it to the next client, and LISTEN would hear nothing: both without an error.
    """
    if connection.info.backend_pid != session:
        where = f"{connection.info.host}:{connection.info.port}"
        raise BehindPooler(
            f"A connection pooler answers at {where}, but locks and LISTEN need a session of their own. "
            "Name the PostgreSQL server behind it: REPLSITE_DATABASE_DIRECT=HOST:PORT "
            "(in a project's own settings: the DIRECT entry of the database)."
        )


def ready_to_read(files: Sequence[Any], seconds: float | None) -> list[Any]:
    """Wait until something can be read of files, sockets or connections, or the time is up; those that have something.

    ``select`` waits for parts of a millisecond, but refuses descriptors from 1,024 on, which a server of many clients has: a
    writer in it would be fenced. ``poll`` takes them, and waits for whole milliseconds.
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
    """Lead this thread's Django connection to the server itself, where the alias names one behind a pooler (``DIRECT``).

    For long work: temporary tables, settings and prepared statements last from one transaction to the next only there.
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
    """A transaction on a direct connection: committed at the end, rolled back by any error, so that none stays open.

    Each of its statements sees what is committed by then.
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
    """Have the session walk along indexes; for connections that only read streams by ascending IDs."""
    with connection.cursor() as cursor:
        # A table without a fitting index looks so expensive then that its plan would be compiled to machine code each time.
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")


#: Connection -> statement -> how it is called.
_prepared: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
_MOST_PREPARED = 200
#: Descriptors that ``select`` takes lie below.
_MOST_OF_SELECT = 1_024
_PARAMETER = re.compile(r"%\((\w+)\)s|%s|%%")


def execute_prepared(cursor: Any, statement: str, parameters: Mapping[str, Any]) -> None:
    """Execute a statement that this session plans once; for those that a direct connection says again and again.

    Planning takes longer than the statement in most of ours. Parameters are named; the statement must tell their types. Not
    through a transaction pooler, where the next message may meet another session.
    """
    cursor.execute(_prepared_call(cursor, statement) or statement, parameters)


def _known_in(cursor: Any) -> dict[str, str]:
    """Statement -> how it is called, of those that this session has planned."""
    return _prepared.setdefault(cursor.connection, {})


def _prepared_call(cursor: Any, statement: str) -> str | None:
    """How the statement is called in this session, which plans it when it is new; null when it prepared enough."""
    known = _known_in(cursor)
    if (call := known.get(statement)) is not None:
        return call
    if len(known) >= _MOST_PREPARED:  # somebody writes values into statements
        return None
    names: list[str] = []
    places: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        name = found[1] or str(len(names))  # without a name each is one of its own
        if name not in names:
            names.append(name)
            places.append(found[0])
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(numbered, statement)
    name = f"replsite_{len(known)}"
    cursor.execute("SET plan_cache_mode = force_generic_plan")
    cursor.execute(f"PREPARE {name} AS {text}")
    call = known[statement] = f"EXECUTE {name}" + (f" ({', '.join(places)})" if places else "")
    return call


class Statement(NamedTuple):
    """One of several statements of a message: its text with its values, named or in order.

    ``again``: it is said many times with these very words, so it is worth planning once a session.
    """

    text: str
    values: Mapping[str, Any] | Sequence[Any] = ()
    again: bool = True


def send_together(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[tuple[Any, ...]]:
    """Send statements in one message over Django's connection, in its open transaction; the rows of the last one.

    Under READ COMMITTED each sees what was committed when it begins. All of them have values of one kind: named ones, by which
    they may share them, or values in order. Nothing is prepared where a pooler stands between (``DIRECT`` of the alias).
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
    """Prepares every statement with named parameters."""

    _is_preparing = False

    def execute(self, query: Any, vars: Any = None) -> None:
        """As the driver's."""
        if not isinstance(vars, dict) or self._is_preparing:
            super().execute(query, vars)
            return
        self._is_preparing = True
        try:
            execute_prepared(self, query, vars)
        finally:
            self._is_preparing = False


def notify_queue_usage(cursor: Any) -> float:
    """Returns how full the server's queue of notifications is, from 0 to 1, after what nobody waits for is removed from it.

    The server itself removes that when it takes a notification. A session listens in a transaction and the queue fills; the
    session ends, and since the queue is full no notification is taken: it stays full until somebody asks this.
    """
    cursor.execute("SELECT pg_notification_queue_usage()")
    return float(cursor.fetchone()[0])


class KeptConnection:
    """A direct connection that is opened when it is needed, and thrown away when it fails, so that the next use opens another.

    For one thread at a time. ``reads_in_order`` is for connections that read facts by ascending IDs, a piece at a time: on a
    table that was filled since its last ANALYZE the planner would read and sort everything for each piece, instead of
    walking along the index. Statements with named parameters are planned once (``execute_prepared``).
    """

    def __init__(self, using: str | None, application_name: str, *, reads_in_order: bool = False) -> None:
        self._using = using
        self._application_name = application_name
        self._reads_in_order = reads_in_order
        self._connection: Any = None

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A cursor; raises ``DatabaseError``, also when the server cannot be reached."""
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
        """Give the connection back."""
        if self._connection is not None:
            with suppress(DatabaseError):  # it may be gone already
                self._connection.close()
            self._connection = None


def dsn(using: str | None = None) -> str:
    """A libpq connection string for programs without Django, such as Spark executors. Holds the password."""
    return str(psycopg2.extensions.make_dsn(**_parameters(using)))


#: Connection -> the mark of the schema in which its site's tables are.
_marks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def schema_mark(cursor: Any) -> str:
    """What channels and locks of this site carry (``streams.db.schema_mark``); asked once for each connection."""
    connection = cursor.connection
    mark = _marks.get(connection)
    if mark is None:
        with connection.cursor() as asking:
            asking.execute(f"SELECT {SCHEMA_MARK}")
            mark = _marks[connection] = str(asking.fetchone()[0])
    return mark


def channel(cursor: Any, name: str) -> str:
    """The site's channel of that name, for LISTEN and NOTIFY."""
    return marked_channel(name, schema_mark(cursor))


def _key(cursor: Any, kind: str, name: str) -> int:
    """64 bits for an advisory lock of this site: two names share one with a chance of 1 in 10^19."""
    mark = schema_mark(cursor)
    return _key_of(f"replsite.{kind}@{mark}:{name}" if mark else f"replsite.{kind}:{name}")


def _key_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


#: Part of a statement: sessions ``a`` that hold an advisory lock, which is the parameter; other sessions than our own.
LOCK_HOLDERS = """
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.pid <> pg_backend_pid()
  AND (l.classid::bigint << 32 | l.objid::bigint) = %s
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def writer_key(cursor: Any, instance: str) -> int:
    """Held by the process that owns the writer name, for its life, as a session lock."""
    return _key(cursor, "writer", instance)


def append_key(cursor: Any, instance: str) -> int:
    """Held, shared, by every transaction that appends as this writer; whoever gets it exclusively knows none is open."""
    return _key(cursor, "append", instance)


def reader_key(cursor: Any, reader: str) -> int:
    """Held by the process that runs the named reader, as a session lock."""
    return _key(cursor, "reader", reader)


def recorder_key(cursor: Any, name: str) -> int:
    """Held by the process that records a foreign server under a name, as a session lock."""
    return _key(cursor, "recorder", name)


def publisher_key(channel: str) -> int:
    """Held by the server that publishes on a Redis channel, as a session lock: one, whatever schema its site is in."""
    return _key_of(f"replsite.publisher:{channel}")


def trim_key(cursor: Any, stream: str) -> int:
    """Held while a stream is trimmed, as a session lock."""
    return _key(cursor, "trim", stream)


def start_key(cursor: Any, stream: str) -> int:
    """Held while a writer enters a stream or its sequence is repaired."""
    return _key(cursor, "start", stream)


def migrate_key(cursor: Any) -> int:
    """Held by ``manage.py migrate``, as a session lock."""
    return _key(cursor, "migrate", "")
