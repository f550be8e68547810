"""Direct connections, several statements in one message, advisory lock keys, errors: on psycopg2 or on psycopg 3.

The driver is the package that Django uses: psycopg 3 if it is installed, else psycopg2. The code that differs between
the two packages is in ``driver_psycopg2`` and ``driver_psycopg3``, which no other module imports.

Direct connections are for locks and LISTEN. They do not go through a transaction pooler. A forked child opens
connections of its own. Keepalives make the loss of a host noticed within seconds. All other queries use Django's
connection.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import select
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DjangoError
from django.db import InterfaceError as DjangoInterfaceError
from django.db import OperationalError as DjangoOperationalError
from django.db import ProgrammingError as DjangoProgrammingError
from django.db import connections

from streams.conf import stream_settings
from streams.db import advice
from streams.db.schema_mark import SCHEMA_MARK, marked_channel
from streams.db.session_settings import RELIED_ON, with_relied_on
from streams.runtime.text import one_line

try:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel, errors, is_psycopg3
except ImportError as error:
    raise ImproperlyConfigured(
        f"Streams need a driver of PostgreSQL, and none can be imported ({error}): pip install 'psycopg2-binary>=2.8.4', or "
        "for psycopg 3, pip install 'psycopg[binary]>=3.1.8'."
    ) from error
if is_psycopg3:
    from streams.db import driver_psycopg3 as _driver
else:
    from streams.db import driver_psycopg2 as _driver  # type: ignore[no-redef]

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = [
    "IDLE",
    "LOCK_HOLDERS",
    "NAME",
    "OPEN",
    "SESSION_SETTINGS",
    "SNAPSHOT_LEVELS",
    "BehindPooler",
    "DatabaseError",
    "KeptConnection",
    "ListeningConnection",
    "OperationalError",
    "Statement",
    "WrongEncoding",
    "advising",
    "bound_times",
    "channel",
    "connection_lost",
    "database_lost",
    "direct_connection",
    "dsn",
    "end_sessions",
    "execute_prepared",
    "explain",
    "followers_key",
    "go_to_last_result",
    "has_ended",
    "in_transaction",
    "lock_timed_out",
    "looker_key",
    "migrate_key",
    "missing",
    "notices",
    "notify_queue_full",
    "notify_queue_usage",
    "past_pooler",
    "prepare_session",
    "read_in_order",
    "reader_key",
    "ready_to_read",
    "receive",
    "received",
    "recorder_key",
    "schema_mark",
    "send_together",
    "sqlstate",
    "statement_cancelled",
    "still_works",
    "transaction_status",
    "trim_key",
    "with_values",
    "wrong_encoding",
]

#: The name of the driver's package.
NAME = _driver.NAME
DatabaseError = _driver.DatabaseError
OperationalError = _driver.OperationalError
BehindPooler = _driver.BehindPooler
received, receive, notices = _driver.received, _driver.receive, _driver.notices
go_to_last_result = _driver.go_to_last_result


class WrongEncoding(_driver.OperationalError):
    """The error if a database cannot hold every text."""


#: Errors that the driver raises when a connection is lost. It raises some of them also for a statement that failed on a
#: connection that works: ``still_works`` tells them apart.
connection_lost = (_driver.OperationalError, _driver.InterfaceError)
#: The errors of the driver when a connection is lost, and the errors that Django raises for them.
database_lost = (DjangoOperationalError, DjangoInterfaceError, *connection_lost)
#: Errors for a missing table, sequence or column. Trying again does not help.
missing = (errors.UndefinedTable, errors.UndefinedColumn)
#: The error when a transaction with a notification commits while the server's queue of notifications is full.
notify_queue_full = errors.ProgramLimitExceeded
#: The error when a lock is not free within ``lock_timeout``. It is also one of ``connection_lost``.
lock_timed_out = errors.LockNotAvailable
#: The error when a statement is ended, by ``statement_timeout`` or by somebody. It is also one of ``connection_lost``.
statement_cancelled = errors.QueryCanceled
#: Values of ``transaction_status``: no transaction, and a transaction without an error.
IDLE = 0
OPEN = (1, 2)
#: Values of the isolation level of Django's connections whose transactions keep one snapshot.
SNAPSHOT_LEVELS = (int(IsolationLevel.REPEATABLE_READ), int(IsolationLevel.SERIALIZABLE))

#: The client notices that the server's host is lost after 5 + 3 x 2 seconds of silence, or if bytes that it sent are not
#: acknowledged for 11 seconds.
_KEEPALIVES = {
    "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 11_000,
}  # fmt: skip
#: Sets the same limits in the server, for each new session. Without them the server keeps the locks of a lost host for hours.
#: Also sets what our statements rely on.
SESSION_SETTINGS = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', false)"
    for name, value in {
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "11000",
        **RELIED_ON,
    }.items()
)
#: Lifts limits that the role or the server has for its programs. Sessions that wait for notifications or hold a lock may send
#: nothing for hours. The engine's statements are short, unless they must wait. Policies of a table that would hide facts or
#: positions from the role are an error: a reader would pass over these facts, and a trim would mark them as trimmed.
_NO_LIMITS = (
    "set_config('idle_session_timeout', '0', false), set_config('statement_timeout', '0', false), "
    "set_config('lock_timeout', '0', false), set_config('row_security', 'off', false)"
)
#: Classes of SQLSTATE of errors with which the server ends a session: connection errors, and shutdowns.
_ENDS_SESSION = ("08", "57P")
#: Most characters of payloads that ``ListeningConnection.receive`` returns at once, apart from one buffer of the driver.
PORTION_CHARACTERS = 250_000
#: Characters that are escaped in a value of libpq's ``options``.
_IN_OPTIONS = re.compile(r"[\\\s]")
_NOT_LIBPQ = {
    "cursor_factory",
    "cursor_class",
    "server_side_binding",
    "prepare_threshold",
    "isolation_level",
    "assume_role",
    "pool",
    "context",
}


def explain(error: BaseException) -> str:
    """Returns the text of a database error as one line. If the remedy is known, the line ends with the remedy."""
    text = one_line(error)
    cause = error if isinstance(error, DatabaseError) else error.__cause__
    # An embedded server that does not start says what to do, too: no operator starts it.
    if isinstance(cause, BehindPooler | WrongEncoding) or isinstance(error.__cause__, DjangoOperationalError):
        return text
    if isinstance(cause, missing):
        (text, *_) = str(error).strip().splitlines()  # the other lines show the query
        return f"{text}. {advice.about_missing_relation(text)}"
    if isinstance(cause, connection_lost):
        if cure := advice.about_missing_database(text):
            return f"{text.rstrip('.?')}. {cure}"
        if still_works(error):
            return f"The database cannot be used: {text}"  # it answers: a full disk, a lock that timed out
        return f"The database cannot be reached: {text.rstrip('.?')}. Start it, or correct DATABASES (or DATABASE_URL)."
    return text


@contextmanager
def advising() -> Iterator[None]:
    """Adds the remedy to an error of Django's for a missing table, sequence or column: a note below its text."""
    try:
        yield
    except DjangoProgrammingError as error:
        if isinstance(error.__cause__, missing):
            error.add_note(advice.about_missing_relation(str(error)))
        raise


def sqlstate(error: BaseException) -> str | None:
    """Returns the SQLSTATE of an error of the driver, also if Django has wrapped the error.

    Returns None if the error did not come from the server.
    """
    cause = error if isinstance(error, DatabaseError) else error.__cause__
    return getattr(cause, _driver.ERROR_CODE, None)


def still_works(error: BaseException) -> bool:
    """Returns true if the connection can be used after this error.

    The connection can be used if the server reported the error and did not end the session. Examples are a lock
    timeout, a cancelled statement and a full disk.
    """
    code = sqlstate(error)
    return code is not None and not code.startswith(_ENDS_SESSION)


def transaction_status(connection: Any) -> int:
    """Returns libpq's transaction status of a connection of the driver: ``IDLE``, one of ``OPEN``, or another number."""
    return int(connection.info.transaction_status)


def with_values(cursor: Any, statement: str, values: Mapping[str, Any] | Sequence[Any] | None) -> str:
    """Returns the statement with the values written into its text. Another session may execute it."""
    text = cursor.mogrify(statement, values)
    return text.decode() if isinstance(text, bytes) else str(text)


def bound_times(cursor: Any) -> None:
    """Makes a cursor of Django's load each time as one with which Python can compute (``moments.bounded``)."""
    _driver.bound_times(cursor.cursor)


def _parameters(using: str | None) -> dict[str, Any]:
    wrapper = connections[using or stream_settings().database]
    parameters = {k: v for k, v in wrapper.get_connection_params().items() if k not in _NOT_LIBPQ}
    if direct := wrapper.settings_dict.get("DIRECT", {}):
        parameters |= {name.lower(): value for name, value in direct.items()}  # the server behind a pooler
    if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):  # Django sends it as a statement of its own
        given = _IN_OPTIONS.sub(r"\\\g<0>", role)
        parameters["options"] = f"{_options_of(parameters)} -c role={given}".strip()
    return parameters


def _options_of(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("options") or os.environ.get("PGOPTIONS", ""))


def _must_reconnect(connection: Any) -> bool:
    # psycopg2 reads once, when it connects, whether a backslash is an escape in a literal. If that were changed in the
    # session, a text with a backslash and a quote would end its literal.
    strings = connection.info.parameter_status("standard_conforming_strings")
    return _driver.READS_STRINGS_ONCE and strings == "off"


def prepare_session(wrapper: BaseDatabaseWrapper) -> None:
    """Sets keepalives and what our statements rely on in the new session of Django's connection."""
    if _must_reconnect(wrapper.connection):
        options = wrapper.settings_dict["OPTIONS"]
        # A pooler refuses the others.
        options["options"] = f"{_options_of(options)} -c standard_conforming_strings=on".strip()
        wrapper.close()
        wrapper.connect()  # calls this function for the new session
        return
    with wrapper.cursor() as cursor:
        cursor.execute(SESSION_SETTINGS)


def direct_connection(using: str | None = None, *, application_name: str) -> Any:
    """Opens a connection of the driver to the server of Django's alias, in autocommit mode. The caller must close it.

    Client and server each notice within seconds if the other's host is lost. ``application_name`` is shown in
    ``pg_stat_activity``. Raises ``OperationalError`` if the server cannot be reached, ``BehindPooler`` if a connection pooler
    answers instead of the server, and ``WrongEncoding``.
    """
    try:
        found = _parameters(using)
    except DjangoOperationalError as error:  # an embedded server that does not start
        raise OperationalError(str(error)) from error
    parameters = {"connect_timeout": 10} | found | _KEEPALIVES | {"application_name": application_name[:63]}
    connection = _driver.connect(parameters)
    if _must_reconnect(connection):
        connection.close()
        connection = _driver.connect(parameters | {"options": with_relied_on(_options_of(parameters))})
    try:
        if refusal := wrong_encoding(connection):
            raise WrongEncoding(refusal)
        with connection.cursor() as cursor:
            cursor.execute(f"{SESSION_SETTINGS}, {_NO_LIMITS}, pg_backend_pid()")
            _refuse_pooler(connection, session=cursor.fetchone()[-1])
    except BaseException:
        connection.close()
        raise
    return connection


def wrong_encoding(connection: Any) -> str:
    """Returns why the database of a connection of the driver cannot be used, and what to do.

    Returns an empty text for a database in UTF-8, the only encoding that holds every text.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == "UTF8":
        return ""
    return (
        f"The database {connection.info.dbname!r} has the encoding {encoding}, in which names and messages of many languages "
        "cannot be stored. Make another (CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0), name it in DATABASE_URL or "
        "DATABASES, and move the rows over with pg_dump and psql."
    )


def _refuse_pooler(connection: Any, session: int) -> None:
    """Raises ``BehindPooler`` if the connection leads to a connection pooler.

    ``session`` is the PID of the backend that answered a query. Without a pooler the handshake named the same PID. With
    a pooler the handshake names a number of the pooler, and each transaction may run in another session. Then a
    writer's lock would stay with a session that other clients use next, and LISTEN would receive nothing. In both cases
    there would be no error.
    """
    if connection.info.backend_pid != session:
        where = f"{connection.info.host}:{connection.info.port}"
        raise BehindPooler(
            f"A connection pooler answers at {where}, but locks and LISTEN need a session of their own. "
            "Name the PostgreSQL server behind it: REPLSITE_DATABASE_DIRECT=HOST:PORT "
            "(in a project's own settings: the DIRECT entry of the database)."
        )


def ready_to_read(files: Sequence[Any], seconds: float | None) -> list[Any]:
    """Waits until a file, socket or connection is readable, ``seconds`` at most (None: no limit).

    Returns the readable elements of ``files``.

    Uses ``select``, which can wait for parts of a millisecond, but raises an error for descriptors from 1,024 on. A
    server with many clients has such descriptors, and the error would end its listener. For high descriptors ``poll``
    is used, which waits for whole milliseconds.
    """
    by_descriptor = {file if isinstance(file, int) else file.fileno(): file for file in files}
    if max(by_descriptor) < _MOST_OF_SELECT:
        found = select.select(list(by_descriptor), [], [], None if seconds is None else max(seconds, 0.0))[0]
    else:
        waiting = select.poll()
        for descriptor in by_descriptor:
            waiting.register(descriptor, select.POLLIN | select.POLLPRI)
        found = [d for d, _ in waiting.poll(None if seconds is None else math.ceil(max(seconds, 0.0) * 1_000))]
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
    # Django's pool (psycopg 3) would lend a connection to the pooler.
    options = {name: value for name, value in given["OPTIONS"].items() if name != "pool"}
    wrapper.settings_dict = {**given, **direct, "OPTIONS": options, "DIRECT": {}}
    try:
        yield
    finally:
        wrapper.close()
        wrapper.settings_dict = given


def has_ended(wrapper: BaseDatabaseWrapper) -> bool:
    """Returns true if the server has ended the session of Django's connection while it was idle. Asks the server nothing."""
    session = wrapper.connection
    return session is not None and (bool(session.closed) or bool(ready_to_read([session], 0)))


def end_sessions() -> None:
    """Ends the sessions of this thread's Django connections. The next use of an alias has a new session."""
    for wrapper in connections.all(initialized_only=True):
        if wrapper.vendor == "postgresql" and wrapper.connection is not None:
            with suppress(DatabaseError):
                wrapper.connection.close()  # a pool would lend the session again
        wrapper.close()


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
        with suppress(DatabaseError, DjangoError):  # the connection may be gone, and the transaction with it
            cursor.execute("ROLLBACK")
        raise


def read_in_order(connection: Any) -> None:
    """Makes the session use plain index scans wherever possible. For connections that only read streams by ascending IDs."""
    with connection.cursor() as cursor:
        # JIT must be off, too. If a table has no suitable index, the cost of its plan is now so high that PostgreSQL would
        # compile the plan each time.
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")


#: Connection -> statement -> its EXECUTE call.
_prepared: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
_MOST_PREPARED = 200
#: Numbers of prepared statements. None is used twice: an exception that a signal handler raises just after PREPARE leaves the
#: session with a statement that this process does not know.
_numbers = itertools.count()
#: Connection -> statement -> how often ``is_repeated`` was called for it. At most ``_MOST_PREPARED`` statements are counted.
_uses: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
#: Statements of ``is_repeated`` are worth preparing from this use on, as preparing costs two round trips. Django opens a
#: connection for each request unless ``CONN_MAX_AGE`` is set.
PREPARED_FROM_USE = 3
#: SQLSTATE of an EXECUTE whose statement the session does not have.
_UNKNOWN_STATEMENT = "26000"
#: ``select`` accepts only descriptors below this.
_MOST_OF_SELECT = 1_024
_PARAMETER = re.compile(r"%\((\w+)\)s|%s|%%")


def execute_prepared(cursor: Any, statement: str, parameters: Mapping[str, Any]) -> None:
    """Executes a statement, which is prepared first so that the session plans it only once.

    For statements that are repeated often, because planning most of them takes longer than executing them. The statement
    must declare the types of its parameters. Not for use through a transaction pooler, where the next message may reach
    another session.
    """
    _execute(cursor, lambda: _prepared_call(cursor, statement) or statement, parameters)


def _execute(cursor: Any, text: Callable[[], str], values: Any) -> None:
    """Executes a text that may call prepared statements. If the session has lost these statements, prepares them again.

    A session loses them by ``DISCARD ALL`` or ``DEALLOCATE ALL``. ``text`` is a function that prepares the statements
    and returns the text. If the transaction executed other statements before, the error has already rolled them back.
    Then the error is raised, and the statements are prepared at the next call.
    """
    is_first = transaction_status(cursor.connection) == IDLE
    try:
        cursor.execute(text(), values)
    except Exception as error:
        if sqlstate(error) != _UNKNOWN_STATEMENT or not _prepared.pop(cursor.connection, None) or not is_first:
            raise
        if transaction_status(cursor.connection) != IDLE:  # the driver has sent BEGIN with the text
            cursor.connection.rollback()
        cursor.execute(text(), values)


def _known_in(connection: Any) -> dict[str, str]:
    known = _prepared.get(connection)
    return _prepared.setdefault(connection, {}) if known is None else known


def _prepared_call(cursor: Any, statement: str) -> str | None:
    # None: the session has ``_MOST_PREPARED`` statements already.
    known = _known_in(cursor.connection)
    if (call := known.get(statement)) is not None:
        return call
    if len(known) >= _MOST_PREPARED:  # some code writes values into the text of its statements
        return None
    if not known:
        cursor.execute("SELECT pg_backend_pid()")
        if cursor.fetchone()[0] != cursor.connection.info.backend_pid:
            return None  # a pooler answers: the next message may reach a session that has prepared other statements
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
    name = f"replsite_{next(_numbers)}"
    # Without this the server makes a new plan for each of the first five executions of a statement.
    cursor.execute("SET plan_cache_mode = force_generic_plan")
    cursor.execute(f"PREPARE {name} AS {text}")
    call = known[statement] = f"EXECUTE {name}" + (f" ({', '.join(places)})" if places else "")
    return call


def is_repeated(connection: BaseDatabaseWrapper, statement: str) -> bool:
    """Counts a use of the statement on Django's connection.

    Returns true if the statement was used often enough on the connection that preparing it saves time.
    """
    session = connection.connection
    if session is None:
        return False
    uses = _uses.get(session)
    if uses is None:
        uses = _uses.setdefault(session, {})
    if len(uses) >= _MOST_PREPARED and statement not in uses:
        return False
    uses[statement] = count = uses.get(statement, 0) + 1
    return count >= PREPARED_FROM_USE


class Statement(NamedTuple):
    """A statement to send together with other statements in one message: its text and its values, by name or in order.

    ``again`` is true if the same text is executed many times, so that it is worth preparing. ``places`` has the SQL of
    each parameter, in order. ``places`` is needed only if a parameter has several values, such as ``ARRAY[%s, %s]``.
    """

    text: str
    values: Mapping[str, Any] | Sequence[Any] = ()
    again: bool = True
    places: Sequence[str] = ()


def _with_places(text: str, places: Sequence[str]) -> str:
    remaining = iter(places)
    return _PARAMETER.sub(lambda found: found[0] if found[0] == "%%" else next(remaining), text)


def send_together(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[tuple[Any, ...]]:
    """Sends several statements in one message over Django's connection. Returns the rows of the last statement.

    The statements run in the connection's open transaction, or else in one new transaction. Under READ COMMITTED each
    statement sees what was committed when this statement begins. Either all statements have values by name, which they
    may share, or all have values in order. Statements are not prepared if the alias has a ``DIRECT`` entry, because
    then the connection goes through a pooler.
    """
    with connection.cursor() as cursor:
        is_direct = not connection.settings_dict.get("DIRECT")

        def texts() -> str:
            known = _known_in(connection.connection)
            sent: list[str] = []
            for text, _, again, places in statements:
                call = (known.get(text) or _prepared_call(cursor, text) or text) if again and is_direct else text
                sent.append(_with_places(call, places) if places else call)
            return "; ".join(sent)

        named: dict[str, Any] = {}
        ordered: list[Any] = []
        for _, values, _, _ in statements:
            if isinstance(values, (list, tuple)):
                ordered += values
            else:
                named |= values
        _execute(cursor, texts, named or ordered)
        # Not through Django's cursor, which wraps each of its methods in a new function.
        rows = getattr(cursor, "cursor", cursor)
        with connection.wrap_database_errors:
            go_to_last_result(rows)
            return rows.fetchall() if rows.description is not None else []


def rows_of_repeated(
    connection: BaseDatabaseWrapper, query: str, values: Mapping[str, Any] | Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Returns the rows of a query. A session that repeats the query plans it once, as in ``send_together``."""
    return send_together(connection, [Statement(query, values, again=is_repeated(connection, query))])


class _Preparing:
    """A cursor that prepares every statement whose parameters are given by name."""

    _is_preparing = False

    def execute(self, query: Any, values: Any = None) -> None:
        """Executes a statement as the driver does. If ``values`` is a dictionary, the statement is prepared."""
        execute = super().execute  # type: ignore[misc]
        # `execute_prepared` executes on this cursor, so it calls this method again.
        if not isinstance(values, dict) or self._is_preparing:
            execute(query, values)
            return
        self._is_preparing = True
        try:
            execute_prepared(self, query, values)
        finally:
            self._is_preparing = False


_PreparingCursor = type("_PreparingCursor", (_Preparing, _driver.Cursor), {})


def notify_queue_usage(cursor: Any) -> float:
    """Cleans the server's queue of notifications, and returns how full it is, from 0 to 1.

    The query removes entries that no session waits for any more. Without this query, the server removes them only when
    it accepts a new notification, and a full queue accepts none. So a queue that a listening session has let fill up
    would stay full even after that session ended, until this query is run.
    """
    cursor.execute("SELECT pg_notification_queue_usage()")
    return float(cursor.fetchone()[0])


class KeptConnection:
    """A direct connection that opens when it is first used.

    After a failure the connection is closed, and the next use opens a new connection.

    Only one thread at a time may use it. Statements with named parameters are prepared (``execute_prepared``).

    Set ``reads_in_order`` for connections that read facts by ascending IDs in pieces. Otherwise PostgreSQL may read and
    sort the whole table for each piece, instead of using the index. PostgreSQL does so on a table that was filled after
    its last ANALYZE. A statement that waits for a lock for ``lock_seconds`` raises ``lock_timed_out`` (0: it waits on).
    """

    def __init__(
        self, using: str | None, application_name: str, *, reads_in_order: bool = False, lock_seconds: float = 0.0
    ) -> None:
        self._lock_ms = int(lock_seconds * 1000)
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
            if self._lock_ms and is_new:
                with self._connection.cursor() as fresh:
                    fresh.execute(f"SET lock_timeout = {self._lock_ms}")
            with _PreparingCursor(self._connection) as cursor:
                yield cursor
        except DatabaseError:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            with suppress(DatabaseError):  # it may be gone already
                self._connection.close()
            self._connection = None


class ListeningConnection:
    """A direct connection that receives the notifications of one channel. After LISTEN no statement runs on it.

    The server would send the answer to a statement only after all notifications that are queued before it. The driver
    would keep these notifications in memory until the answer arrives, and every role that may connect can queue
    gigabytes. Without statements, notifications are received in portions, and the rest waits in the server's queue.

    Raises the driver's errors, as ``direct_connection`` does. Only one thread at a time may use it.
    """

    def __init__(
        self,
        channel_name: str,
        using: str | None,
        *,
        application_name: str,
        prepare: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.is_behind = False
        """True if the last portion was full, so more notifications wait in the server's queue."""
        self._connection = direct_connection(using, application_name=application_name)
        try:
            self.session: int = self._connection.info.backend_pid
            with self._connection.cursor() as cursor:
                prepare(cursor)
                cursor.execute(f"LISTEN {channel(cursor, channel_name)}")
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """True if ``close`` was called, or if an error showed that the connection is lost."""
        return bool(self._connection.closed)

    def fileno(self) -> int:
        """Returns the descriptor of the connection's socket, which is readable when notifications have arrived."""
        return int(self._connection.fileno())

    def receive(self) -> list[tuple[int, str]]:
        """Returns a portion of the received notifications as (PID of the sending session, payload), in order.

        Does not block. A portion has little more than ``PORTION_CHARACTERS``. Raises the driver's errors if the
        connection is lost.
        """
        found: list[tuple[int, str]] = []
        size = 0
        # Each call reads at most libpq's buffer, some 10 kB.
        while size < PORTION_CHARACTERS and (notifies := receive(self._connection)):
            found += [(n.pid, n.payload) for n in notifies]
            size += sum(len(n.payload) for n in notifies)
            notifies.clear()
        self.is_behind = size >= PORTION_CHARACTERS
        return found

    def close(self) -> None:
        with suppress(DatabaseError):  # it may be gone already
            self._connection.close()


def dsn(using: str | None = None) -> str:
    """Returns a libpq connection string for programs without Django, such as Spark executors.

    The string contains the password, and sets what our statements rely on. Policies that would hide rows are an error.
    """
    parameters = _parameters(using)
    options = with_relied_on(f"{_options_of(parameters)} -c row_security=off".strip())
    return _driver.connection_string(parameters | {"options": options})


#: Connection -> the suffix of the schema that holds its site's tables.
_marks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def schema_mark(cursor: Any) -> str:
    """Returns the suffix of channels and locks of this site's schema (``streams.db.schema_mark``).

    The suffix is queried once for each connection. Errors are Django's, if the cursor is.
    """
    connection = cursor.connection
    mark = _marks.get(connection)
    if mark is None:
        wrapped = cursor.db.wrap_database_errors if hasattr(cursor, "db") else nullcontext()
        with wrapped, connection.cursor() as asking:
            asking.execute(f"SELECT {SCHEMA_MARK}")
            mark = _marks[connection] = str(asking.fetchone()[0])
    return mark


def channel(cursor: Any, name: str) -> str:
    return marked_channel(name, schema_mark(cursor))


def _key(cursor: Any, kind: str, name: str) -> int:
    """Returns a 64-bit key for an advisory lock of this site. Two names have the same key with a chance of 1 in 10^19."""
    mark = schema_mark(cursor)
    text = f"replsite.{kind}@{mark}:{name}" if mark else f"replsite.{kind}:{name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


#: FROM and WHERE of a statement about the sessions ``a`` that hold an advisory lock, except our own. A prepared transaction has
#: no session: the columns of ``a`` are null. Parameter: the lock's key.
LOCK_HOLDERS = """
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND (a.pid <> pg_backend_pid() OR l.pid IS NULL)
  AND (l.classid::bigint << 32 | l.objid::bigint) = %s
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def reader_key(cursor: Any, reader: str) -> int:
    """Returns the key of the session lock that the process of a named reader holds while it reads."""
    return _key(cursor, "reader", reader)


def recorder_key(cursor: Any, name: str) -> int:
    return _key(cursor, "recorder", name)


def trim_key(cursor: Any, stream: str) -> int:
    return _key(cursor, "trim", stream)


def migrate_key(cursor: Any) -> int:
    return _key(cursor, "migrate", "")


def looker_key(cursor: Any) -> int:
    """Returns the key of the session lock that the site's looker holds while it looks (``streams.reading.looker``)."""
    return _key(cursor, "looker", "")


def followers_key(cursor: Any) -> int:
    """Returns the key of the session lock that all share who follow stored positions (``streams.reading.looker``)."""
    return _key(cursor, "followers", "")
