"""Helpers for tests of programs that use the engine: handlers that run at once, and listeners that end with the test.

    class PayTest(TestCase):
        def test_a_paid_order_is_mailed(self):
            with testing.handled("mailer") as run:
                services.pay(basket)
            assert [order.order_id for order in run.facts] == ["4711"]

In a ``TestCase`` the test's own transaction counts as committed: for ``read``, ``listen``, ``wait_for`` and for handlers
(``streams.db.testcase``).

A test that really commits (``TransactionTestCase``) ends by emptying all tables. What this process has read of them is
forgotten, and its listeners end, before the tables are emptied, and also before the test database is dropped. Django's test
classes do this by themselves (``prepare``).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from streams import caches, registry
from streams.db import testcase
from streams.errors import HandlerFailed, InTransaction
from streams.follow.chunks import Chunk
from streams.follow.handler_transaction import call_undivided
from streams.follow.handlers import Handler, handlers_of, load_handlers
from streams.holds.maintenance import session_changing_facts
from streams.reading.looker import end_looks
from streams.reading.rows import existing_rows
from streams.replication.protocol.ordering import FollowedRow
from streams.runtime.leaving import stop_background_work
from streams.stream_object import Stream
from streams.waiting import wait
from streams.waiting.pages import complete_position
from streams.writing.given_out import forget_given_out, last_given_out

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["Run", "forget_writers", "handled", "prepare"]

#: Handlers may append facts, which are handled in a further round. After this number of rounds they are assumed never to end.
MOST_ROUNDS = 1_000
WAIT_SECONDS = 10.0


@dataclass(slots=True)
class Run:
    """The facts that the handlers of a ``with handled(…)`` block got, once the block has ended."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def facts(self) -> list[Any]:
        """The facts as model instances, in the order in which they were handled."""
        return [instance for chunk in self.chunks for instance in chunk.instances]

    @property
    def count(self) -> int:
        """The number of facts that were handled."""
        return sum(chunk.fact_count for chunk in self.chunks)


class handled:
    """Context manager that gives the facts that its block appended to the handlers of the named readers.

    The handlers run at the end of the block, in this thread. Handlers are found as in production, in the modules
    ``handlers`` of the installed apps. Depending on its declaration, a handler gets a chunk or a single fact at a time,
    in a transaction of its own. Facts that a handler appends are handled, too. Cursors are neither read nor moved. An
    error of a handler is raised at once, without further attempts. Inside of a ``TestCase`` the facts count as
    committed. If the block raises an error, no handler is called.

    Raises ``UnknownReader``, and ``InTransaction`` inside of an ``atomic`` block of the test or of the tested code.
    """

    def __init__(self, *readers: str) -> None:
        if not readers:
            raise TypeError('testing.handled() needs the name of a reader: handled("mailer").')
        self._readers = readers
        self._run = Run()
        self._left: list[tuple[Handler, Stream, int]] = []

    def __enter__(self) -> Run:
        load_handlers()
        for handler in [handler for reader in self._readers for handler in handlers_of(reader)]:
            handler.check_stream()
            stream = registry.get(handler.stream)
            connection = connections[stream.database]
            if testcase.is_in_callers_block(connection):
                raise InTransaction(
                    f"testing.handled({', '.join(map(repr, self._readers))}) was used inside of an atomic block: what "
                    f"its block appends is not committed when it ends, so no handler would get it. Put the atomic block "
                    f"inside of the with block."
                )
            with connection.cursor() as cursor:
                start = stream.sequence_value(cursor)
            self._left.append((handler, stream, start))
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        for _ in range(MOST_ROUNDS):
            if not self._one_round():
                return
        raise HandlerFailed(
            f"testing.handled({', '.join(map(repr, self._readers))}): after {MOST_ROUNDS} rounds the handlers still append "
            f"facts that they handle."
        )

    async def __aenter__(self) -> Run:
        return await sync_to_async(self.__enter__, thread_sensitive=True)()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await sync_to_async(self.__exit__, thread_sensitive=True)(kind, error, trace)

    def _one_round(self) -> bool:
        found_any = False
        for place, (handler, stream, after) in enumerate(self._left):
            rows, reached = _rows(handler, stream, after)
            self._left[place] = (handler, stream, reached)
            if rows:
                found_any = True
                self._handle(handler, Chunk(stream.name, rows, stream.database))
        return found_any

    def _handle(self, handler: Handler, chunk: Chunk) -> None:
        using = handler.effects_database
        for part in chunk.singles() if handler.each else [chunk]:
            with transaction.atomic(using=using, durable=True) if handler.atomic else nullcontext():
                call_undivided(handler, part) if handler.atomic else handler.call(part)
            self._run.chunks.append(part.unloaded_copy())


def _rows(handler: Handler, stream: Stream, after: int) -> tuple[list[FollowedRow], int]:
    connection = connections[stream.database]
    if not testcase.is_in_test(connection):
        known = last_given_out(stream, connection)
        if known > after:
            stream.wait_for(known, WAIT_SECONDS)
    with connection.cursor() as cursor:
        upto = max(complete_position(cursor, stream, stream.database), after)
        return existing_rows(cursor, stream.declaration, None, after, upto, handler.chunk_rows)


# --- between tests ------------------------------------------------------------------------------------------------


def forget_writers() -> None:
    """Forgets what this process knows of the tables, and ends its listeners, because the tables are going to be emptied."""
    wait.forget_views()
    caches.stop_feeds()
    stop_background_work()
    end_looks()
    forget_given_out()


def prepare(connection: BaseDatabaseWrapper) -> None:
    """Makes Django call ``forget_writers`` before it empties the tables, and before it drops the database.

    Called for each new connection of a process that runs tests.
    """
    creation = connection.creation
    if "destroy_test_db" not in vars(creation):
        vars(creation)["destroy_test_db"] = _after_release(creation.destroy_test_db)
    cases = sys.modules.get("django.test.testcases")
    if cases is not None and not hasattr(cases.TransactionTestCase, "_streams_prepared"):
        cases.TransactionTestCase._streams_prepared = True
        cases.TransactionTestCase._fixture_teardown = _after_release(
            _with_changes_allowed(cases.TransactionTestCase._fixture_teardown)
        )


def _with_changes_allowed(method: Any) -> Any:
    # Django empties all tables in one statement.
    @wraps(method)
    def empty(case: Any) -> Any:
        with ExitStack() as stack:
            for alias in case._databases_names(include_mirrors=False):
                if connections[alias].vendor == "postgresql":
                    stack.enter_context(session_changing_facts(connections[alias]))
            return method(case)

    return empty


def _after_release(method: Any) -> Any:
    @wraps(method)
    def release_first(*args: Any, **kwargs: Any) -> Any:
        forget_writers()
        return method(*args, **kwargs)

    return release_first
