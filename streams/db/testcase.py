"""Recognises the transaction that a test keeps open on a connection, and counts facts appended in it as committed.

Django's ``TestCase`` runs each test in a transaction that is rolled back at the end. No fact of such a test is ever
committed, so no position ever covers it. Code that reads through the same connection treats the test's own transaction
as if it did not exist: facts that were appended outside of any ``atomic`` block of the tested code are complete, and
facts of a block that is still open are not. pytest-django's fixture ``db`` uses the same transaction.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

#: Connection -> (its outermost block of the tested code, {stream: lowest ID that was appended in this block}).
_open: WeakKeyDictionary[BaseDatabaseWrapper, tuple[str, dict[str, int]]] = WeakKeyDictionary()


def is_test_process() -> bool:
    """Returns true in a process that runs tests, that is, after Django's ``setup_test_environment``."""
    utils = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


def is_in_test(connection: BaseDatabaseWrapper) -> bool:
    blocks = connection.atomic_blocks
    return bool(blocks) and bool(getattr(blocks[0], "_from_testcase", False))


def is_in_callers_block(connection: BaseDatabaseWrapper) -> bool:
    """Returns true if the caller has a transaction open on the connection.

    The transaction in which a ``TestCase`` runs each test does not count.
    """
    return bool(_block(connection)) if is_in_test(connection) else connection.in_atomic_block


def record_append(connection: BaseDatabaseWrapper, stream: str, first_id: int) -> None:
    """Records the first ID of an append, for ``lowest_open``.

    Does nothing outside of a ``TestCase``, and outside of the ``atomic`` blocks of the tested code.
    """
    if is_in_test(connection) and (block := _block(connection)):
        known, lowest = _open.get(connection, ("", {}))
        if known != block:
            lowest = {}
            _open[connection] = (block, lowest)
        lowest[stream] = min(first_id, lowest.get(stream, first_id))


def lowest_open(connection: BaseDatabaseWrapper, stream: str) -> int | None:
    """Returns the lowest ID that was appended to the stream in the open ``atomic`` block of the tested code.

    Returns None if no block is open, or if nothing was appended in the open block.
    """
    block, lowest = _open.get(connection, ("", {}))
    return lowest.get(stream) if block and block == _block(connection) else None


def _block(connection: BaseDatabaseWrapper) -> str:
    """Returns a name for the outermost ``atomic`` block of the tested code, or empty text if no such block is open.

    The name is that of the block's savepoint. The object of ``atomic`` does not identify a block, because a decorated
    function uses the same object in all calls.
    """
    blocks = connection.atomic_blocks
    of_test = sum(bool(getattr(block, "_from_testcase", False)) for block in blocks)
    if len(blocks) == of_test:
        return ""
    return connection.savepoint_ids[of_test - 1] or f"block {id(blocks[of_test])}"
