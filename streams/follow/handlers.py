"""Declares handlers. A handler is the function that a reader calls with the facts of a stream, together with its options.

A reader is a name with one handler per stream. Its cursors are stored under this name, so the reader continues where it
stopped. Handlers are registered while ``handlers`` modules are imported. Later the registry does not change.
"""

from __future__ import annotations

import enum
import inspect
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from django.apps import apps
from django.db import connections
from django.db.transaction import TransactionManagementError
from django.utils.module_loading import autodiscover_modules

from streams import registry
from streams.conf import stream_settings
from streams.core.names import check_name
from streams.errors import BadHandler, HandlerEnded, UnknownReader
from streams.follow.chunks import Chunk
from streams.follow.part_keys import key_sql
from streams.replication.protocol.ordering import View
from streams.runtime.text import error_words

__all__ = [
    "Begin",
    "Handler",
    "OnFailure",
    "effects_database_of",
    "handlers_of",
    "handles",
    "load_handlers",
    "readers",
    "streams_database_of",
]

if TYPE_CHECKING:
    from django.db.models import Model

F = TypeVar("F", bound=Callable[[Any], Any])
DEFAULT_CHUNK_ROWS = 10_000
#: What enqueues a task of Django, of procrastinate, of Celery.
_ENQUEUES = ("enqueue", "defer", "delay")


class OnFailure(enum.StrEnum):
    """The choices for what to do with a fact after the handler has failed on it in all attempts."""

    STOP = "stop"
    """The reader stops before the fact, with ``HandlerFailed``."""
    PARK = "park"
    """The fact is stored as a dead letter with its traceback (``manage.py parked``), and the reader goes on."""


class Begin(enum.StrEnum):
    """The starting position of a reader without a stored cursor."""

    NOW = "now"
    """At the present positions: the reader gets facts that are appended from now on."""
    OLDEST = "oldest"
    """At the oldest fact that was not trimmed."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler of a reader.

    ``function`` gets a ``Chunk`` of facts. If ``each`` is true, it gets one model instance at a time, and each fact is
    handled in a separate transaction.

    If ``atomic`` is true, the handler runs in the transaction that stores the cursor, so its effects in the database
    happen exactly once. Otherwise the handler is called outside of a transaction, and the cursor is stored afterwards.
    Use this for effects outside of the database. They happen at least once.

    ``attempts`` is the number of attempts for a fact (None: no limit). ``retry_seconds`` is the first pause between two
    attempts. The pause doubles each time, up to half a minute. After the last attempt ``on_failure`` decides. ``using`` is
    the alias of the database that holds the effects and the cursor. None stands for the streams' database.

    ``task`` is a task of Django, procrastinate or Celery, or a function that enqueues one. What ``function`` returns for a
    fact are its arguments, by name. For None nothing is enqueued.

    If ``by`` names a field, any number of processes may run the reader and share its facts. The facts of one value of the
    field are handled in order, by one process at a time. The order of others is free.
    """

    stream: str
    reader: str
    function: Callable[[Any], Any]
    each: bool = False
    view: View = View.WRITER
    on_failure: OnFailure = OnFailure.STOP
    attempts: int | None = 5
    retry_seconds: float = 0.1
    atomic: bool = True
    begin: Begin = Begin.NOW
    chunk_rows: int = DEFAULT_CHUNK_ROWS
    using: str | None = None
    task: Any = None
    by: str = ""

    @property
    def streams_database(self) -> str:
        """The alias of the database that holds the stream. Django's database router chooses this database for the facts."""
        return registry.get(self.stream).database

    @property
    def effects_database(self) -> str:
        """The alias of the database that holds the handler's effects and the reader's cursor."""
        return self.using or self.streams_database

    @property
    def may_read_ahead(self) -> bool:
        """True if a crash of the stream's database takes back the handler's effects and cursor together with the facts."""
        return self.atomic and self.effects_database == self.streams_database

    def __post_init__(self) -> None:
        where = f"The handler of reader {self.reader!r} for stream {self.stream!r}"
        try:
            check_name(self.reader)
        except ValueError as error:
            raise BadHandler(f"{where}: {error}") from None
        if inspect.iscoroutinefunction(self.function):
            raise BadHandler(
                f"{where} is a coroutine function: handlers run in a thread with a database transaction. Make it a plain "
                f"function; asgiref.sync.async_to_sync calls async code from it."
            )
        self._check_function(where)
        for option, choices in (("view", View), ("on_failure", OnFailure), ("begin", Begin)):
            given = getattr(self, option)
            if given not in list(choices):
                words = ", ".join(f"{choices.__name__}.{choice.name}" for choice in choices)
                raise BadHandler(f"{where}: {option}={given!r} is none of {words}.")
            object.__setattr__(self, option, choices(given))
        whole = [self.chunk_rows] if self.attempts is None else [self.chunk_rows, self.attempts]
        numbers = all(isinstance(n, int) for n in whole) and isinstance(self.retry_seconds, (int, float))
        if not numbers or min(whole) < 1 or self.retry_seconds <= 0:
            raise BadHandler(
                f"{where}: attempts, chunk_rows and retry_seconds must be numbers above 0, the first two whole "
                f"(attempts may be None)."
            )
        if self.task is not None and not self.each:
            raise BadHandler(f"{where}: task= enqueues a task for each fact, so it needs each=True.")
        if self.task is not None and not callable(self._enqueue):
            raise BadHandler(f"{where}: task={self.task!r} is neither a task nor a function that enqueues one.")
        if self.by and not (self.each and self.atomic and self.attempts is not None):
            raise BadHandler(
                f"{where}: by= shares facts among processes, one by one, in transactions, and goes on with other keys if one "
                f"fails. So it needs each=True, atomic=True and a number of attempts."
            )
        if self.by:
            object.__setattr__(self, "view", View.LINEAR)

    def _check_function(self, where: str) -> None:
        # A wrong one would fail on each fact, and with OnFailure.PARK make dead letters of all. A decorator may give more.
        try:
            inspect.signature(self.function, follow_wrapped=False).bind(None)
        except TypeError as error:
            given = "a model instance" if self.each else "a Chunk"
            raise BadHandler(f"{where} is called with one argument, {given}: {error}.") from None
        except ValueError:
            pass  # a function of C, which does not say what it takes

    def call(self, chunk: Chunk) -> None:
        """Calls the function with the facts of the chunk. Raises its errors, or ``HandlerEnded``."""
        connection, process = connections[self.effects_database], os.getpid()
        blocks = len(connection.atomic_blocks)
        try:
            self._call(chunk)
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # of a terminal
            # Of code that the function calls: ``sys.exit``, a task of asyncio that was cancelled.
            raise HandlerEnded(f"{type(error).__name__}: {error_words(error)}".rstrip(": ")) from error
        finally:
            if os.getpid() != process:
                os._exit(1)  # a child of the function would go on as the reader, in the session of its parent
            left = connection.atomic_blocks[blocks:]
            for block in reversed(left):
                block.__exit__(HandlerEnded, HandlerEnded(), None)
        if left:
            raise TransactionManagementError("The handler left a transaction.atomic block open.")

    def _call(self, chunk: Chunk) -> None:
        if not self.each:
            with self._span(row.row for row in chunk.rows):
                self.function(chunk)
            return
        for fact in chunk.facts:
            for instance in fact.made_instances():
                with self._span([instance]):
                    arguments = self.function(instance)
                    if self.task is not None and arguments is not None:
                        self._enqueue(**arguments)

    def _span(self, facts: Iterable[Any]) -> AbstractContextManager[Any]:
        model: Any = registry.get(self.stream).models[0]
        field = _trace_field(model)
        return nullcontext() if field is None else field.handler_span(self.reader, self.stream, facts)

    @property
    def _enqueue(self) -> Callable[..., Any]:
        # A task of procrastinate or Celery can be called itself, and then runs here.
        return next((getattr(self.task, name) for name in _ENQUEUES if hasattr(self.task, name)), self.task)

    def check_stream(self) -> None:
        """Raises ``UnknownStream`` if the stream does not exist.

        Raises ``BadHandler`` for a stream in memory, a bad ``by``, and an alias of no database.

        Called when a ``Reader`` object is created, because all models are loaded then.
        """
        declaration = registry.get(self.stream).declaration
        if self.by:
            key_sql(declaration, self.by)
        if self.using is not None and self.using not in connections:
            raise BadHandler(
                f"The handler of reader {self.reader!r} for stream {self.stream!r}: using={self.using!r} is no alias in "
                f"DATABASES; there are {', '.join(connections)}."
            )
        if declaration.in_memory:
            raise BadHandler(
                f"Stream {self.stream!r} is kept in memory: its positions restart with its writers, so no cursor in it can be "
                f"stored. Follow it with streams.replication.client.follower.Follower."
            )


@cache
def _trace_field(model: type[Model]) -> Any:
    """Returns the first ``streams.traces.TraceParentField`` of the model, or None. Imports nothing for it."""
    return next((field for field in model._meta.concrete_fields if hasattr(field, "handler_span")), None)


#: What ``handles`` takes besides the stream and the reader.
_OPTIONS = {field.name: field for field in fields(Handler) if field.name not in {"stream", "reader", "function"}}
_handlers: dict[str, dict[str, Handler]] = {}


def handles(stream: str | type[Model], *, reader: str, **options: Any) -> Callable[[F], F]:
    """Returns a decorator that registers a function as the reader's handler of the stream.

    ``stream`` is the model of a stream, or its name. ``options`` are further fields of ``Handler``. With ``each=True``
    the decorated function gets one model instance at a time. Otherwise it gets a ``Chunk``.

    Raises ``BadHandler`` for unusable options and for a second handler of the same reader and stream.
    """
    name = stream if isinstance(stream, str) else registry.stream_of(stream).name

    def register(function: F) -> F:
        if unknown := options.keys() - _OPTIONS:
            raise BadHandler(
                f"The handler of reader {reader!r} for stream {name!r}: there is no option {', '.join(sorted(unknown))}; "
                f"there are {', '.join(_OPTIONS)}."
            )
        handler = Handler(name, reader, function, **options)
        known = _handlers.setdefault(reader, {}).setdefault(name, handler)
        if known is not handler and _place(known.function) != _place(function):
            raise BadHandler(
                f"Reader {reader!r} has a handler for stream {name!r} already ({_place(known.function)}); give "
                f"{_place(function)} a reader of its own."
            )
        _handlers[reader][name] = handler
        return function

    return register


def load_handlers() -> None:
    """Imports the modules ``handlers`` of all installed apps, in which handlers are declared."""
    autodiscover_modules("handlers")


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def effects_database_of(reader: str | None) -> str:
    """Returns the alias of the database that holds the reader's cursors.

    If this program has no handlers of the reader, returns the alias of the streams' database.
    """
    for handler in _handlers.get(reader or "", {}).values():
        return handler.effects_database
    return stream_settings().database


def streams_database_of(reader: str | None) -> str:
    """Returns the alias of the database that holds the streams that the reader follows."""
    for handler in _handlers.get(reader or "", {}).values():
        return handler.streams_database
    return stream_settings().database


def readers() -> list[str]:
    return sorted(_handlers)


def handlers_of(reader: str) -> list[Handler]:
    """Returns the handlers of a reader, sorted by stream. Raises ``UnknownReader``.

    If the reader is unknown so far, imports the modules ``handlers`` first: the caller may be a script.
    """
    if reader not in _handlers and apps.ready:
        load_handlers()
    if reader not in _handlers:
        known = ", ".join(readers()) or "none"
        raise UnknownReader(
            f"No handler names reader {reader!r} (known: {known}). Declare it with streams.handles in a module "
            f"'handlers' of an installed app."
        )
    return [handler for _, handler in sorted(_handlers[reader].items())]
