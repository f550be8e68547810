"""Makes model instances of rows that came from elsewhere than the ORM: over the wire, from dead letters, from records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connections
from django.db.models import Field, JSONField, Model
from django.utils.timezone import make_naive

from streams.core.declaration import Column, ColumnKind, FactTable
from streams.core.named_rows import VERSION, NamedRow, from_json, to_json, upcasts_of
from streams.errors import UnusableFact

if TYPE_CHECKING:
    from streams.core.bound import BoundStream


def row_of_this_version(stream: BoundStream, row: Any) -> Any:
    """Returns a row in the form of this program's version of the stream. Raises ``UnknownVersion``.

    A row that is no JSON object has only one form, and is returned unchanged.
    """
    (table, *others) = stream.declaration.tables
    if others or not isinstance(table.row, NamedRow):
        return row
    fields = [column.key for column in table.columns]
    return upcasts_of(stream.name).row(row, stream.declaration.version, fields)


def instance_of(
    stream: BoundStream, row: Any, identity: Mapping[str, Any], received_at: datetime | None, using: str
) -> Any:
    """Returns an instance of the stream's model that has the values of a row. Raises ``UnknownVersion``, ``UnusableFact``.

    ``identity`` has the values of the ID and of ``instance_name``. Fields that are not sent are deferred: they are
    loaded from the database ``using`` when they are first used.
    """
    (table, *others) = stream.declaration.tables
    if others or not isinstance(table.row, NamedRow):
        raise UnusableFact(
            f"Stream {stream.name!r}: its rows have no names, so no instance can be made of a row. "
            f"Load the instance by its ID from {', '.join(model.__name__ for model in stream.models)}."
        )
    model: type[Model] = stream.models[0]
    current = row_of_this_version(stream, row)
    values = {loader.attribute: loader.load(current[loader.key], using) for loader in _loaders(model, table)}
    values |= {str(model._meta.pk.attname): values.get(str(model._meta.pk.attname)), **identity}
    if received_at is not None:
        values["received_at"] = received_at
    names = [field.attname for field in model._meta.concrete_fields if field.attname in values]
    return model.from_db(using, names, [values[name] for name in names])


def row_of(stream: BoundStream, fact: Model) -> dict[str, Any]:
    """Returns the row that followers get for a model instance. The stream's rows must be JSON objects."""
    (table,) = stream.declaration.tables
    row = {loader.key: loader.dump(fact) for loader in _loaders(type(fact), table)}
    return row | {VERSION: stream.declaration.version}


class _Loader:
    """Converts the value of one field between a row and a model instance."""

    def __init__(self, field: Field[Any, Any], column: Column) -> None:
        self.attribute, self.key = field.attname, column.key
        self._field, self._column = field, column
        self._has_moments = ColumnKind.DATETIME in (column.kind, column.item)
        self._convert: Callable[..., Any] | None = None
        if isinstance(field, JSONField):
            if field.decoder is not None:
                self._convert = lambda value, *given: field.from_db_value(json.dumps(value), *given)
        elif not type(field).__module__.startswith("django."):  # a field of the project may have values of its own
            self._convert = getattr(field, "from_db_value", None)

    def load(self, value: Any, using: str) -> Any:
        """Returns the value that the field has when it is loaded from the database."""
        found = from_json(self._column, value)
        if self._has_moments and not settings.USE_TZ:
            found = _naive(found, ZoneInfo(connections[using].timezone_name))
        if self._convert is None or (found is None and isinstance(self._field, JSONField)):
            return found
        return self._convert(found, self._field.cached_col, connections[using])

    def dump(self, fact: Model) -> Any:
        """Returns the value that the field of this instance has in a row."""
        value = getattr(fact, self.attribute)
        if self._convert is not None and value is not None:
            value = self._field.get_prep_value(value)
        if isinstance(self._field, JSONField):
            return json.loads(json.dumps(value, cls=self._field.encoder))
        return to_json(self._column, value)


def _naive(found: Any, zone: ZoneInfo) -> Any:
    if isinstance(found, list):
        return [_naive(item, zone) for item in found]
    try:
        return found and make_naive(found, zone)
    except OverflowError:
        return None  # as ``from_json``: the year is 10000 there


@cache
def _loaders(model: type[Model], table: FactTable) -> tuple[_Loader, ...]:
    fields = {field.name: field for field in model._meta.concrete_fields}
    return tuple(_Loader(fields[column.key], column) for column in table.columns)
