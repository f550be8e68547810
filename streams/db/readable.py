"""Reads instances of models also where a row has a value that Python has not, and that only SQL can store.

Examples are years before Christ, the year 10000, infinity, and a whole number of 5,000 digits in JSON. Such a value is
None in the instance, as in a row (``streams.core.named_rows.from_json``), so that one row keeps readers from no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import DataError, connections
from django.db.models import QuerySet

from streams.core.own_stack import on_own_stack

if TYPE_CHECKING:
    from django.db.models import Model

#: Errors of drivers and of fields for such a value.
_UNREADABLE = (ValueError, OverflowError, RecursionError, DataError)


def instances(query: QuerySet[Any]) -> list[Any]:
    """Returns the instances of a query. Values that cannot be read are None.

    If the parser of deep JSON values needs more stack than the caller has left, the query runs again in a new thread.
    """
    connection = connections[query.db]

    def fetch() -> list[Any]:
        connections[query.db] = connection  # of the caller, also in the thread that ``on_own_stack`` may begin
        return list(query.all())

    connection.inc_thread_sharing()
    try:
        return on_own_stack(fetch)
    except _UNREADABLE:
        each = (_instance(query.model, query.db, key) for key in query.values_list("pk", flat=True))
        return [row for row in each if row is not None]
    finally:
        connection.dec_thread_sharing()


def _instance(model: type[Model], using: str, key: Any) -> Any:
    # No manager of the model is asked, as these may leave rows out.
    query: QuerySet[Any] = QuerySet(model, using=using).filter(pk=key)
    attributes = [field.attname for field in model._meta.concrete_fields]
    unreadable = [attribute for attribute in attributes if not _can_be_read(query, attribute)]
    row = query.defer(*unreadable).first()
    if row is not None:
        row.__dict__.update(dict.fromkeys(unreadable))
    return row


def _can_be_read(query: QuerySet[Any], attribute: str) -> bool:
    try:
        query.values_list(attribute, flat=True).first()
    except _UNREADABLE:
        return False
    return True
