"""Calls a handler in a transaction whose fate is known, whatever the handler does to the transaction or to its session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from streams.db import driver
from streams.errors import ReaderFenced
from streams.follow.chunks import Chunk
from streams.follow.handlers import Handler
from streams.follow.stored_cursors import CursorMoved
from streams.runtime.logs import get_logger

log = get_logger(__name__)
#: What a message must have that ends its transaction. Words such as these may also stand elsewhere, and END ends much else.
_MAY_END = re.compile(
    r"\b(?:COMMIT|ROLLBACK|ABORT|PREPARE\s+TRANSACTION)\b(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b)|(?:^|;|\*/|\n)\s*END\b",
    re.I,
)


class ConnectionLost(Exception):
    """The error after a lost database connection. The stored cursor shows if the last transaction was committed."""


@contextmanager
def as_connection_lost() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error.__cause__, driver.DatabaseError):
            raise ConnectionLost(str(error)) from error
        raise


def commit_once(handler: Handler, work: Callable[[], None], committed: Callable[[], None] = lambda: None) -> None:
    """Calls ``work`` in a transaction, and ``committed`` once it is committed.

    Raises ``ConnectionLost`` if the database connection broke, and otherwise the error of ``work`` or of the commit.
    """
    using, is_committed = handler.effects_database, False
    is_outermost = not any(connection.in_atomic_block for connection in connections.all(initialized_only=True))

    def after_commit() -> None:
        nonlocal is_committed
        is_committed = True
        committed()

    try:
        with transaction.atomic(using=using):
            # This must be the first commit hook. In another order: the transaction is committed, a hook of the handler fails, and
            # the facts seem not to be handled. They would be handled again, parked, or end the reader.
            transaction.on_commit(after_commit, using=using)
            work()
    except (ReaderFenced, CursorMoved, KeyboardInterrupt):
        raise
    except BaseException as error:  # a hook may call ``sys.exit``
        # The next attempt, and the facts behind, must not have what the handler did to the session, such as a setting.
        if is_outermost:
            driver.end_sessions()
        if is_committed:
            log.exception("reader.commit_hook_failed", reader=handler.reader, stream=handler.stream)
        elif is_outermost and not works(using):
            raise ConnectionLost(driver.explain(error)) from error
        else:
            raise


def works(using: str) -> bool:
    """Returns true if the alias has a session that answers, or a new one does."""
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception:  # noqa: BLE001 - a backend may have errors of its own, as that of the embedded server has
        return False
    return True


def call_undivided(handler: Handler, chunk: Chunk) -> None:
    """Calls the handler in the open transaction, whose end is the caller's.

    Raises ``TransactionManagementError`` if the handler has ended the transaction itself, or caught a database error inside it.
    Then its effects are undone, or no longer in one transaction with the cursor, and it would seem that it had succeeded.
    """
    connection = connections[handler.effects_database]

    def status() -> int:
        opened = connection.connection
        return driver.IDLE if opened is None or opened.closed else driver.transaction_status(opened)

    has_ended, was_used = False, status() != driver.IDLE

    def check_not_ended() -> None:
        nonlocal has_ended
        has_ended = has_ended or (was_used and status() == driver.IDLE)
        if has_ended:
            raise ended

    def start_of_transaction() -> Any:
        if status() == driver.IDLE:
            return None
        with connection.connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            return cursor.fetchone()

    def execute(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal was_used, has_ended
        check_not_ended()  # else the statement, of a later fact perhaps, would be committed by itself, and come again
        if was_used and _MAY_END.search(str(arguments[0])):
            # ``ROLLBACK AND CHAIN``, or ``ROLLBACK; BEGIN``, leaves no moment without a transaction: the effects are undone, and
            # the cursor would move in the next one. That begins later.
            before = start_of_transaction()
            result = call(*arguments)
            has_ended = has_ended or start_of_transaction() != before
        else:
            result = call(*arguments)
        # Not before: of a first statement that fails, the driver may have sent nothing, or it sends the statement again.
        was_used = True
        return result

    ended = transaction.TransactionManagementError(
        "The handler ended its transaction itself, by COMMIT or ROLLBACK, or by closing its connection. Put what is "
        "to be undone alone into a transaction.atomic block of its own."
    )
    wrappers = [*connection.execute_wrappers]
    connection.execute_wrappers.append(execute)
    try:
        handler.call(chunk)
    finally:
        connection.execute_wrappers[:] = wrappers  # without what the handler has left there
        if connections[handler.effects_database] is not connection:
            connection.close()  # the handler has deleted it, so nobody else would end its transaction
    check_not_ended()
    if status() not in (driver.IDLE, *driver.OPEN) or transaction.get_rollback(handler.effects_database):
        raise transaction.TransactionManagementError(
            "The handler passed over an error of the database inside its transaction, which is to be rolled back. "
            "Put what may fail into a transaction.atomic block of its own."
        )
