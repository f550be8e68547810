"""Declares a stream by one class: a decorated model.

    @stream("orders", version=2)
    class Order(Fact):
        order_id = models.TextField()
        total = models.DecimalField(max_digits=12, decimal_places=2)


    @upcast(Order, 1)
    def with_total(row):
        return {**row, "total": "0.00"}

The wire row is a JSON object of the class's own fields (``streams.core.named_rows``). Streams whose rows have an exact form,
as those of Synapse, have a declaration of their own (``streams.catalog``) and bind to it with ``streams.registry.bind``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.backends.utils import names_digest
from django.db.models import AutoField, CompositePrimaryKey, Field, ForeignKey, Index, Model
from django.db.models.fields.related import lazy_related_operation
from django.db.models.query_utils import DeferredAttribute

from streams.core import lookup
from streams.core.declaration import NEWEST_PER_KINDS, Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.named_rows import NamedRow, Upcast, upcasts_of
from streams.facts import Fact
from streams.holds.constraint import StreamHolds
from streams.registry import Sample, bind
from streams.sequence import CreateStreamSequence, StreamSequence, sequence_of
from streams.stream_object import Stream

__all__ = ["CreateStreamSequence", "StreamSequence", "sequence_of", "stream", "upcast"]

M = TypeVar("M", bound="type[Model]")
U = TypeVar("U", bound=Upcast)

_KINDS = {
    "AutoField": ColumnKind.BIGINT,
    "BigAutoField": ColumnKind.BIGINT,
    "BigIntegerField": ColumnKind.BIGINT,
    "BinaryField": ColumnKind.BINARY,
    "BooleanField": ColumnKind.BOOLEAN,
    "CharField": ColumnKind.TEXT,
    "DateField": ColumnKind.DATE,
    "DateTimeField": ColumnKind.DATETIME,
    "DecimalField": ColumnKind.DECIMAL,
    "DurationField": ColumnKind.DURATION,
    "FileField": ColumnKind.TEXT,
    "FilePathField": ColumnKind.TEXT,
    "FloatField": ColumnKind.FLOAT,
    "GenericIPAddressField": ColumnKind.ADDRESS,
    "IPAddressField": ColumnKind.ADDRESS,
    "IntegerField": ColumnKind.BIGINT,
    "JSONField": ColumnKind.JSON,
    "PositiveBigIntegerField": ColumnKind.BIGINT,
    "PositiveIntegerField": ColumnKind.BIGINT,
    "PositiveSmallIntegerField": ColumnKind.BIGINT,
    "SlugField": ColumnKind.TEXT,
    "SmallAutoField": ColumnKind.BIGINT,
    "SmallIntegerField": ColumnKind.BIGINT,
    "TextField": ColumnKind.TEXT,
    "TimeField": ColumnKind.TIME,
    "UUIDField": ColumnKind.UUID,
}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def stream(  # noqa: PLR0913 - options of a declaration, all by keyword
    name: str,
    *,
    version: int = 1,
    key: str = "",
    newest_per: str = "",
    fields: Sequence[str] | None = None,
    sample: Sample | None = None,
    trimmable: bool = True,
) -> Callable[[M], M]:
    """Class decorator that declares the stream ``name``, whose facts are the rows of the model.

    A row is sent as a JSON object of the fields that the class itself declares, in the order of their declaration. The
    fields of ``Fact`` and an automatic primary key are left out. ``fields`` names other fields to send instead. If the
    fields change, raise ``version``, and declare an ``upcast`` that turns an older row into a new one.
    ``makemigrations`` writes the sequence of the stream's IDs and its holds (``streams.holds``) into a migration.

    ``key`` is the field by which facts belong together. ``newest_per`` names a field, too: for each value of that field
    only the newest row is kept. ``sample(number, thread)`` returns field values for ``manage.py append``. Set
    ``trimmable=False`` if the data exists nowhere else than in the facts of the
    stream.

    The stream is the attribute ``stream`` of the class. Raises ``TypeError`` for a class or field that cannot be
    declared.
    """
    if not isinstance(name, str):
        raise TypeError('stream() needs the name of the stream: write @stream("orders") above the class.')

    def declare(model: M) -> M:
        _check_model(model, name, version)
        if not isinstance(trimmable, bool):  # "no" would count as true, and the facts would be trimmed
            raise TypeError(f"{model.__name__}: trimmable={trimmable!r} of stream {name!r} must be True or False.")
        chosen = _travelling(model, fields)
        by_name = {field.name: field for field in model._meta.concrete_fields}
        for option, field_name in (("key", key), ("newest_per", newest_per)):
            if field_name and field_name not in list(by_name):  # a list of names has no hash
                raise TypeError(
                    f"{model.__name__}: {option}={field_name!r} names no field of the class. Name one of "
                    f"{', '.join(by_name)}."
                )
            if field_name and _column(model, by_name[field_name]).kind not in NEWEST_PER_KINDS:
                # Equal values of others have several texts (1.0 and 1.00), so two writers of one key would not meet.
                raise TypeError(
                    f"{model.__name__}: {option}={field_name!r} must name a text, a whole number or a UUID."
                )

        def declaration() -> StreamDeclaration:
            table = FactTable(
                model._meta.db_table,
                tuple(_column(model, field) for field in chosen),
                row=NamedRow(version),
                id_column=str(by_name[_id_field(model)].column),
                then_by=str(model._meta.pk.column),
                newest_per=str(by_name[newest_per].column) if newest_per else "",
            )
            return StreamDeclaration(name, (table,), sequence_of(name), trimmable=trimmable, version=version, key=key)

        bind(declaration(), sample=sample)(model)
        bound = lookup.get(name)
        if model in bound.models:  # else another class has this name, as the system check says
            _finish(model, bound, declaration, chosen, newest_per)
        return model

    return declare


def upcast(model: type[Fact] | str, version: int) -> Callable[[U], U]:
    """Decorator of the function that turns a row of ``version`` into a row of the next version.

    ``model`` is the class of the stream, or the name of a stream. The function gets the older row as a dict by field
    name, with the values as they are sent. The function returns the newer row. Older rows come from servers that run an
    older version of the program, from dead letters, and from records.

    Raises ``ValueError`` for a version that is not below the stream's declared version, for a second function for the
    same version, and for a function that cannot be called with a row.
    """

    def register(function: U) -> U:
        name = model if isinstance(model, str) else lookup.stream_of(model).name
        bound = lookup.find(name)
        if version < 0 or (bound is not None and version >= bound.declaration.version):
            declared = "" if bound is None else f", whose row has version {bound.declaration.version}"
            raise ValueError(
                f"upcast({name!r}, {version}): there is no next version of stream {name!r}{declared}. "
                f"Name the older version, and raise version= of the stream."
            )
        try:
            inspect.signature(function, follow_wrapped=False).bind({})
        except TypeError as error:
            raise ValueError(
                f"upcast({name!r}, {version}): {_place(function)} is called with the older row: {error}."
            ) from None
        known = upcasts_of(name).functions.setdefault(version, function)
        if known is not function and _place(known) != _place(function):
            raise ValueError(f"upcast({name!r}, {version}): {_place(known)} does this already.")
        upcasts_of(name).functions[version] = function
        return function

    return register


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


# --- the class ----------------------------------------------------------------------------------------------------


class _StreamOfModel:
    """The attribute ``stream`` of a model class. Instances of the model do not have this attribute."""

    def __init__(self, bound: Stream) -> None:
        self._bound = bound

    def __get__(self, instance: Model | None, owner: type[Model]) -> Stream:
        if instance is not None:
            raise AttributeError(f"The stream is an attribute of the class: {owner.__name__}.stream")
        return self._bound


class _KeyOfFact(DeferredAttribute):
    """The automatic primary key. That of a fact that was made of its row is found by the fact's ID when it is used."""

    def __get__(self, instance: Model | None, owner: type[Model] | None = None) -> Any:
        if instance is None:
            return self
        if self.field.attname not in instance.__dict__:
            instance.refresh_from_db(fields=[self.field.attname])
        return instance.__dict__[self.field.attname]


def _check_model(model: type[Model], name: str, version: int) -> None:
    options = model._meta
    if not issubclass(model, Fact) or options.abstract or options.proxy or options.parents:
        raise TypeError(
            f"{model.__name__} cannot be the stream {name!r}: decorate a class of its own table, made of streams.Fact. "
            f"Put fields that several classes share into an abstract class."
        )
    if isinstance(options.pk, CompositePrimaryKey):
        raise TypeError(
            f"{model.__name__} cannot be the stream {name!r}: its primary key has several columns. Leave the key to Django, "
            f"and add a UniqueConstraint."
        )
    if not _NAME.fullmatch(name):
        raise TypeError(
            f"{model.__name__}: {name[:100]!r} is no name of a stream: use letters, digits, '_', '-' and '.'."
        )
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TypeError(f"{model.__name__}: version={version!r} of stream {name!r} must be a whole number from 1.")
    reserved = "stream" if hasattr(model, "stream") else "id_field"
    if reserved == "stream" or any(field.name == reserved for field in options.fields):
        raise TypeError(
            f"{model.__name__} has an attribute {reserved!r}, which is a name of the engine: name it otherwise "
            f"(db_column={reserved!r} keeps a column of that name)."
        )
    for ours in Fact._meta.fields:
        if any(f.name == ours.name and f.get_internal_type() != ours.get_internal_type() for f in options.fields):
            raise TypeError(
                f"{model.__name__}.{ours.name} is a field of streams.Fact, a {type(ours).__name__}: name yours otherwise."
            )


def _finish(
    model: type[Model],
    bound: Any,
    declaration: Callable[[], StreamDeclaration],
    chosen: Sequence[Field[Any, Any]],
    newest_per: str,
) -> None:
    """Adds to the class the sequence, the holds, the indexes of the keys, and the attribute ``stream``.

    Repeats the declaration once the models of the foreign keys are known, because these models decide the types of the
    columns.
    """
    sequence = StreamSequence(stream=bound.name, version=bound.declaration.version, id_field=_id_field(model))
    holds = StreamHolds(stream=bound.name, id_field=_id_field(model), fixed=not newest_per)
    model._meta.constraints = [*model._meta.constraints, sequence, holds]
    model._meta.original_attrs["constraints"] = model._meta.constraints
    for name in dict.fromkeys(filter(None, (bound.declaration.key, newest_per))):
        index = Index(fields=[name, _id_field(model)], name=_index_name(bound.name, name))
        if all(index.fields != known.fields for known in model._meta.indexes):
            model._meta.indexes = [*model._meta.indexes, index]
            model._meta.original_attrs["indexes"] = model._meta.indexes
    model.stream = _StreamOfModel(bound)  # type: ignore[attr-defined]
    if isinstance(key := model._meta.pk, AutoField):
        setattr(model, key.attname, _KeyOfFact(key))

    def describe(*_: type[Model]) -> None:
        bound.declaration = declaration()
        (table,) = bound.declaration.tables
        sequence.row = {c.key: f"{c.item}[]" if c.item is not None else str(c.kind) for c in table.columns}

    describe()
    if keys := [field.remote_field.model for field in chosen if isinstance(field, ForeignKey)]:
        lazy_related_operation(describe, model, *keys)


def _index_name(stream: str, field: str) -> str:
    # Not after the table, as Django would: a migration that squashes CreateModel and RenameModel would rename an index that is
    # made only at its end.
    return f"key_{stream[:8]}_{field[:7]}_{names_digest(stream, field, length=6)}"


def _id_field(model: type[Model]) -> str:
    return str(getattr(model, "id_field", "stream_id"))


# --- its fields ---------------------------------------------------------------------------------------------------


def _travelling(model: type[Model], names: Sequence[str] | None) -> list[Field[Any, Any]]:
    """Returns the fields that are sent in a row, in order: those in ``names``, or else the fields that the class declares."""
    every = {field.name: field for field in model._meta.concrete_fields}
    if names is not None:
        if isinstance(names, str) or (unknown := [name for name in names if name not in every]):
            raise TypeError(
                f"{model.__name__}: fields={names!r} must be a list of fields of the class: {', '.join(every)}."
                if isinstance(names, str)
                else f"{model.__name__} has no field {', '.join(unknown)}; it has {', '.join(every)}."
            )
        return [every[name] for name in names]
    ours = {_id_field(model), *(field.name for field in Fact._meta.fields)}
    return [
        field
        for name, field in every.items()
        if name not in ours and not (field.primary_key and isinstance(field, AutoField))
    ]


def _column(model: type[Model], field: Field[Any, Any]) -> Column:
    real, depth = _real(field), 0
    while real is not None and real.get_internal_type() == "ArrayField":
        real, depth = _real(real.base_field), depth + 1  # type: ignore[attr-defined]
    if real is None:  # a foreign key to a model that is declared later
        return Column(str(field.column), ColumnKind.BIGINT, nullable=field.null, field=field.name)
    kind = _KINDS.get(real.get_internal_type())
    if kind is None or (depth > 1 and kind in _OF_ONE_DIMENSION):
        raise TypeError(
            f"{model.__name__}.{field.name} cannot be part of a stream's row: {type(real).__name__}"
            f"{' in a nested array' if depth > 1 else ''} has no form on the wire. Use one of "
            f"{', '.join(sorted(_KINDS))}, ForeignKey and ArrayField, turn the value into text, or name the fields that "
            f"travel: @stream(..., fields=[...])."
        )
    item = None
    if depth:
        kind, item = (ColumnKind.TEXT_ARRAY, None) if kind is ColumnKind.TEXT else (ColumnKind.ARRAY, kind)
    return Column(str(field.column), kind, nullable=field.null, field=field.name, item=item)


#: Kinds whose elements are converted one by one, which ``streams.core.named_rows`` does only in arrays of one dimension.
_OF_ONE_DIMENSION = {
    ColumnKind.DECIMAL, ColumnKind.DATETIME, ColumnKind.DATE, ColumnKind.TIME, ColumnKind.DURATION, ColumnKind.UUID,
    ColumnKind.BINARY, ColumnKind.ADDRESS,
}  # fmt: skip


def _real(field: Any) -> Field[Any, Any] | None:
    """Returns the field that decides the type of a field's values.

    For a foreign key, returns the field to which the key points. For a generated field, returns its output field. For
    any other field, returns the field itself. Returns None for a foreign key whose model is not declared yet.
    """
    while isinstance(field, ForeignKey):
        if isinstance(field.remote_field.model, str):
            return None
        try:
            field = field.target_field
        except ValueError:  # the target's key points to a model that is not declared yet
            return None
    return field.output_field if getattr(field, "generated", False) else field
