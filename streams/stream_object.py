"""The public object of a stream, ``Order.stream``.

The object appends facts, reads them in pages, listens, and waits for tokens.

``append`` and ``reserve`` work in the caller's transaction, also inside nested ``atomic`` blocks, and from any thread.
All methods use the database that the router chooses for the model, unless ``using`` names another database.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, router
from django.utils.asyncio import async_unsafe

from streams.conf import stream_settings
from streams.core.bound import BoundStream
from streams.core.named_rows import NamedRow
from streams.core.tokens import VectorToken
from streams.db import testcase
from streams.errors import ForeignFact, TokenError
from streams.facts import Fact
from streams.instances import instance_of
from streams.reading.given_token import Token
from streams.waiting.current import Current, current
from streams.waiting.listen import Listener
from streams.waiting.pages import Page, page_after, page_before, position_of, reached_in_test
from streams.waiting.wait import await_for, wait_for
from streams.writing.append import append_facts
from streams.writing.keys import append_of_keys, key_filter
from streams.writing.reservation import Reservation


class Stream(BoundStream):
    """A declared stream with the models of its tables; one object per stream and process."""

    @property
    def database(self) -> str:
        """The alias of the stream's database: the router's choice for the model, else ``REPLSITE_DATABASE``."""
        for candidate in router.routers if self.models else ():
            choose = getattr(candidate, "db_for_write", None)
            if choose is not None and (alias := choose(self.models[0])):
                return str(alias)
        return stream_settings().database

    # --- write ----------------------------------------------------------------------------------------------------

    def reserve(self, count: int = 1, using: str | None = None) -> Reservation:
        """Returns a reservation of IDs for ``count`` facts, which is a context manager.

        The ``with`` block runs in the caller's transaction, or in a new transaction if none is open. The IDs are
        complete when the outermost transaction has ended. Raises ``BadCount`` and ``WriterNotAllowed``.
        """
        return Reservation(self, count, using or self.database)

    def append(self, *facts: Fact, expected: Token | None = None, using: str | None = None, **fields: Any) -> list[int]:
        """Appends facts that have one row each, every fact under its own ID.

        Returns the IDs, which are positive and ascending.

        Takes facts (``append(Order(…), Order(…))``) or the fields of a single fact (``append(order_id="4711")``).
        Appends in the caller's transaction if there is one, and readers then see the facts after its commit.
        ``expected`` is the token of the newest fact of the same key that the caller knows, or 0 for a new key.

        Raises ``VersionConflict`` if the key has a newer fact. Raises ``BadCount`` if no fact is given. Raises
        ``ForeignFact`` if a fact is of another stream, already has an ID, or is given twice. These errors are raised
        before any ID is reserved.
        """
        if fields:
            facts = (self._made(facts, fields),)
        alias = using or self.database
        if self.declaration.key:
            number = None if expected is None else position_of(self, expected, alias)
            return append_of_keys(self, facts, number, alias)
        if expected is not None:
            key_filter(self, None)
        return append_facts(self, facts, alias)

    async def aappend(self, *facts: Fact, using: str | None = None, **fields: Any) -> list[int]:
        """Does the same as ``append``, for async code.

        Runs in the thread that asgiref uses for synchronous database code.
        """
        return await sync_to_async(self.append, thread_sensitive=True)(*facts, using=using, **fields)

    def _made(self, facts: tuple[Fact, ...], fields: dict[str, Any]) -> Fact:
        if facts:
            raise ForeignFact(
                f"Stream {self.name}: append() was given facts and fields ({', '.join(fields)}); give one or the other."
            )
        if len(self.models) != 1:
            names = ", ".join(model.__name__ for model in self.models)
            raise ForeignFact(
                f"Stream {self.name}: append() cannot make a fact of fields, because the stream has several models "
                f"({names}). Give it objects of these."
            )
        made: Fact = self.models[0](**fields)
        return made

    # --- read -----------------------------------------------------------------------------------------------------

    def read(
        self,
        after: Token | None = None,
        limit: int = 50,
        *,
        newest: bool = False,
        before: Token | None = None,
        key: Any = None,
        using: str | None = None,
    ) -> Page:
        """Returns a page of whole facts in the order of their IDs, at most ``limit`` of them.

        ``after`` is the token of the page before, or of a fact. None stands for the oldest fact that was not trimmed.
        With ``newest=True`` the page has the last facts, newest first, and ``before`` is the token of the page before.
        With ``key`` the page has only facts of this key: a value of the field that the stream's ``key=`` names. Facts
        of open transactions are left out, also the caller's own. No later page skips them: they are returned after
        their commit.

        Raises ``TokenError``, ``EpochChanged``, ``BadLimit``, and ``ResyncNeeded`` if facts after the token were
        trimmed.
        """
        alias = using or self.database
        only = None if key is None else key_filter(self, key)
        if newest:
            _refuse_both(self.name, "after", after, "with newest=True give before=")
            return page_before(self, before, limit, alias, only)
        _refuse_both(self.name, "before", before, "it is for newest=True")
        return page_after(self, after, limit, alias, only)

    async def aread(self, after: Token | None = None, limit: int = 50, **options: Any) -> Page:
        """Does the same as ``read``, for async code."""
        return await sync_to_async(self.read, thread_sensitive=True)(after, limit, **options)

    def listen(self, after: Token | None = None, *, beat: float | None = None, using: str | None = None) -> Listener:
        """Returns an iterator over the facts after the token, each as soon as it is complete, for ``for`` and ``async for``.

        The iterator waits for further facts and never ends by itself. It yields None after ``beat`` seconds without a
        fact, so that the caller can do something else, such as a heartbeat. Without ``after`` it begins at the end that
        the stream has at this call. In async code it begins at the end that the stream has at the first ``async for``.
        The caller may close the iterator, or leave the loop, at any time. A restart of the database loses no fact.

        Iteration raises ``TokenError``, ``EpochChanged``, ``ResyncNeeded``, and ``InTransaction`` inside of an open
        transaction.
        """
        listener = Listener(self, after, beat, using or self.database)
        if after is None and _may_block():
            listener.start()
        return listener

    @property
    def has_named_rows(self) -> bool:
        """True if rows are JSON objects by field name, of which instances can be made."""
        (table, *others) = self.declaration.tables
        return not others and isinstance(table.row, NamedRow)

    def fact(
        self, row: Any, *, token: int, writer: str = "", received_at: datetime | None = None, using: str | None = None
    ) -> Any:
        """Returns a model instance with the values of a row. The row may be of this program's version or of another version.

        No query is made: the instance has no primary key. Fields that are not sent are loaded when they are first used.
        Raises ``UnknownVersion`` for a row that this program cannot read (``streams.declare.upcast``), and
        ``UnusableFact`` for a stream whose rows have no names.
        """
        id_field = getattr(self.models[0], "id_field", "stream_id")
        identity = {id_field: token * self.sign, "instance_name": writer}
        return instance_of(self, row, identity, received_at, using or self.database)

    # --- positions ------------------------------------------------------------------------------------------------

    def current(self, using: str | None = None) -> Current:
        """Returns the stream's current positions, by one query.

        The result has two positions for each writer. The minimum is the last fact that the writer is known to have
        committed. Use the minimum as the position for which another process waits. The maximum is the writer's stored
        position, up to which all its facts are complete. It is above the minimum if others have appended since.
        """
        return current(self, using or self.database)

    def wait_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """Blocks until this process sees everything that the token covers.

        Takes a position, the list that ``append`` returned, a vector, or the text of any token. Returns the position
        that the stream has when the wait ends. Raises ``WaitTimedOut``, ``TokenError``, ``EpochChanged``; see
        ``streams.waiting.wait``.
        """
        alias = using or self.database
        if testcase.is_in_test(connections[alias]) and (at := reached_in_test(self, token, alias)) is not None:
            return at
        return wait_for(self, token, timeout_seconds, alias)

    async def await_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """Does the same as ``wait_for``, for async code."""
        alias = using or self.database
        if await sync_to_async(lambda: testcase.is_in_test(connections[alias]), thread_sensitive=True)():
            return await sync_to_async(self.wait_for, thread_sensitive=True)(token, timeout_seconds, alias)
        return await await_for(self, token, timeout_seconds, alias)


def _refuse_both(stream: str, name: str, token: Token | None, remedy: str) -> None:
    if token is not None:
        raise TokenError(f"Stream {stream}: read({name}=…) does not fit here: {remedy}.")


@async_unsafe
def _check_may_block() -> None:
    """Raises Django's ``SynchronousOnlyOperation`` in the thread of a running event loop."""


def _may_block() -> bool:
    try:
        _check_may_block()
    except SynchronousOnlyOperation:
        return False
    return True
