"""Appends facts to streams with a key.

A caller may require that the key has no newer fact than the fact that the caller knows.

If several callers append after the same fact of a key, one of them succeeds. The other callers get ``VersionConflict``.

Every append to a stream with a key locks the keys of its facts until its transaction ends: in exclusive mode if the
caller has such a requirement, otherwise in shared mode. So between the check and the commit no other transaction
appends a fact of the key. Without the lock in shared mode, A checks that 7 is the newest fact, B appends 8 without a
check, and A appends 9.

Rows that are written in a reservation (``Stream.reserve``) do not lock their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from streams.db import driver
from streams.errors import ForeignFact, InTransaction, VersionConflict
from streams.facts import all_rows
from streams.writing.append import append_facts, check_new_facts
from streams.writing.given_out import given_out
from streams.writing.key_locks import ROWS_OF_STREAM, key_prefix, lock_exclusively, lock_shared

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.core.bound import BoundStream
    from streams.facts import Fact


def append_of_keys(stream: BoundStream, facts: Sequence[Fact], expected: int | None, using: str) -> list[int]:
    """Appends facts of a stream with a key, as ``append_facts`` does.

    ``expected`` is the position of the newest fact of their key that the caller knows, or 0 for a new key. Raises these
    errors, none of which breaks the caller's transaction:

    * ``VersionConflict`` if the key has a newer fact.
    * ``ForeignFact`` if the facts have several keys.
    * ``InTransaction`` in a transaction that cannot see newer facts (REPEATABLE READ).
    """
    check_new_facts(stream, facts)
    connection = connections[using]
    has_transaction = connection.in_atomic_block or not connection.get_autocommit()
    given_out(stream, connection)  # before the rows are locked, which the first call makes
    locks = key_prefix(stream), ROWS_OF_STREAM, _keys(stream, facts)
    with nullcontext() if has_transaction else transaction.atomic(using=using):
        if expected is None:
            return append_facts(stream, facts, using, beside=lock_shared(*locks))
        driver.send_together(connection, lock_exclusively(*locks))
        # A statement of its own, after the lock was granted: its snapshot has the commit of the lock's last holder.
        _check_expected(stream, facts, expected, connection)
        return append_facts(stream, facts, using)


def key_filter(stream: BoundStream, value: Any) -> dict[str, Any]:
    """Returns the filter of a query for one key's facts. Raises ``TypeError`` if the stream has no key."""
    name = stream.declaration.key
    if not name:
        raise TypeError(f'Stream {stream.name} has no key. Declare it: @stream("{stream.name}", key="FIELD").')
    return {name: value}


def _keys(stream: BoundStream, facts: Sequence[Fact]) -> list[str]:
    return sorted({_text(stream, fact) for fact in facts})


def _text(stream: BoundStream, fact: Fact) -> str:
    field = fact._meta.get_field(stream.declaration.key)
    return str(field.get_prep_value(getattr(fact, field.attname)))  # type: ignore[union-attr]


def _check_expected(stream: BoundStream, facts: Sequence[Fact], expected: int, connection: BaseDatabaseWrapper) -> None:
    if len(keys := _keys(stream, facts)) > 1:
        raise ForeignFact(
            f"Stream {stream.name}: append(expected=…) was given facts of {len(keys)} keys; append those of each key on "
            f"their own."
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_isolation')")
        if (level := cursor.fetchone()[0]) != "read committed":
            raise InTransaction(
                f"Stream {stream.name}: append(expected=…) cannot work at the isolation level {level}, which hides newer "
                f"facts. Append in a transaction at READ COMMITTED."
            )
    model = type(facts[0])
    field = model._meta.get_field(stream.declaration.key)
    value = getattr(facts[0], field.attname)  # type: ignore[union-attr]
    found = all_rows(model, connection.alias).filter(**{field.attname: value})  # type: ignore[union-attr]
    order = model.id_field if stream.sign < 0 else f"-{model.id_field}"
    newest = found.order_by(order).values_list(model.id_field, flat=True).first()
    if newest is not None and abs(newest) > expected:
        raise VersionConflict(
            f"Stream {stream.name}: the newest fact of {stream.declaration.key}={value!r} is {abs(newest)}, but {expected} was "
            f"expected: another writer was first. Read the key again (read(key=…)), decide anew, and repeat."
        )
