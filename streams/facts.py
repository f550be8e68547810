"""The abstract model of a fact: one row of a stream's table.

Rows are inserted only through a reservation (``streams.writing.reservation``), or by a bulk load that reserved its IDs. A
fact never changes afterwards, and is deleted only when its stream is trimmed. The engine inserts and trims by SQL. Any
attempt to write through Django raises ``FactIsFixed``: by methods of instances, of all managers and of related managers, by
loading fixtures, and by the cascade of a foreign key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from django.db import models
from django.db.models.functions import Now
from django.db.models.signals import class_prepared, pre_delete

from streams.core import lookup
from streams.errors import FactIsFixed, UnknownTable

__all__ = ["Fact", "FactQuerySet", "all_rows", "keys_that_cascade", "take_related_keys"]

Row = TypeVar("Row", bound=models.Model)
_APPENDS = ("create", "acreate", "bulk_create", "abulk_create", "_insert")
_CHANGES = (
    "update", "aupdate", "bulk_update", "abulk_update", "_update",
    "get_or_create", "aget_or_create", "update_or_create", "aupdate_or_create",
)  # fmt: skip
_DELETES = ("delete", "adelete", "_raw_delete")


class FactQuerySet(models.QuerySet[Row], Generic[Row]):
    """A queryset that only reads: every method that writes raises ``FactIsFixed``."""

    def writable(self) -> models.QuerySet[Row]:
        """Returns a queryset of the same rows that may write.

        For tests and repairs only: no reader may have seen the rows, or all readers must begin again afterwards.
        """
        return models.QuerySet(self.model, self.query.chain(), self.db)


def all_rows(model: type[Row], using: str | None) -> FactQuerySet[Row]:
    """Returns a queryset of all rows of the model's table.

    No manager of the model is asked, not even the base manager: it may leave out rows, such as those of other tenants.
    """
    return FactQuerySet(model, using=using)


class Fact(models.Model):
    """The base of every model whose rows are facts.

    ``stream_id`` is the ID, which all rows of a fact share. ``instance_name`` is the writer. ``received_at`` is the
    time of the insert. A reader's lag in seconds is counted from this time.
    """

    #: Field that holds the ID. A subclass may name another field and set ``stream_id`` to None.
    id_field: ClassVar[str] = "stream_id"

    stream_id = models.BigIntegerField(db_index=True)
    instance_name = models.TextField()
    received_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[models.Manager[Any]] = FactQuerySet.as_manager()
    #: The stream of a declared model (the decorator ``streams.stream``), a ``streams.stream_object.Stream``.
    stream: ClassVar[Any]
    _token = ""

    class Meta:
        abstract = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Makes a fact as Django makes any model instance, but faster if the values are keyword arguments.

        Django takes three times as long for keyword arguments as for positional arguments. So this method turns keyword
        arguments into positional arguments, and adds the defaults of all other fields.
        """
        order = None if args else _order(type(self))
        if order is None or not kwargs.keys() <= order.places.keys():
            super().__init__(*args, **kwargs)
            return
        values = order.defaults.copy()
        for name, place, default in order.calls:
            if name not in kwargs:
                values[place] = default()
        for name, value in kwargs.items():
            values[order.places[name]] = value
        super().__init__(*values)

    def __str__(self) -> str:
        number = getattr(self, self.id_field)
        return f"{type(self).__name__} {'(not appended)' if number is None else number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises ``FactIsFixed``: facts are appended through their stream."""
        _refuse(type(self), "save", _APPEND)

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Loads fields from the database.

        A fact that was made from a row on the wire has no primary key. Such a fact is found in the table by its ID, and
        gets the primary key of the row.
        """
        using = using or self._state.db
        if self.pk is None and (number := getattr(self, self.id_field)) is not None:
            found = all_rows(type(self), using).filter(**{self.id_field: number})
            self.pk = found.values_list("pk", flat=True).get()
        super().refresh_from_db(using, fields, all_rows(type(self), using) if from_queryset is None else from_queryset)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Raises ``FactIsFixed``: facts stay until their stream is trimmed."""
        _refuse(type(self), "delete", _TRIM)

    @property
    def token(self) -> str:
        """The place of this fact in its stream, as text, for ``after=``, ``before=`` and ``wait_for``.

        The text is empty for a fact that was not appended yet. A field of the model with the name ``token`` hides this
        property.
        """
        number = getattr(self, self.id_field)
        return self._token or ("" if number is None else str(abs(number)))


#: Django's own writes (related managers, cascades, fixtures) go through the base manager. Models inherit its name from
#: their parent. In ``Meta`` it would be an option of every model, and would have to be in the migrations.
Fact._meta.base_manager_name = "objects"

_APPEND = "Append it through its stream, in the transaction that it belongs to: {stream_object}.append({model}(...))."
_CHANGE = (
    "A fact never changes, because readers may have read it: append another one with the present state, "
    "{stream_object}.append({model}(...))."
)
_TRIM = "Facts stay until their stream is trimmed: manage.py purge stream {stream} --keep 30d."
_KEPT = (
    "The facts of this stream are the data itself: they stay until an operator purges that (manage.py purge --help)."
)


def _refuse(model: type[models.Model], what: str, way_out: str) -> NoReturn:
    name = model.__name__
    stream = "NAME"
    try:
        declaration = lookup.stream_of(model).declaration
    except UnknownTable:  # the model is not bound yet
        pass
    else:
        stream = declaration.name
        way_out = _KEPT if way_out == _TRIM and not declaration.trimmable else way_out
    stream_object = f"{name}.stream" if hasattr(model, "stream") else f"registry.stream_of({name})"
    said = way_out.format(model=name, stream=stream, stream_object=stream_object)
    raise FactIsFixed(f"{name}.{what}: refused, {name} is a fact. {said}")


def _refusal(name: str, way_out: str) -> Any:
    def refuse(self: FactQuerySet[Any], *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self.model, name, way_out)

    def update(self: FactQuerySet[Any], *args: Any, **kwargs: Any) -> int:
        if self.exists():
            _refuse(self.model, name, way_out)
        return 0  # for a foreign key with SET_NULL, Django calls this even if no row points to the deleted row

    found: Any = update if name == "update" else refuse
    found.__name__ = name
    found.queryset_only = False  # so that Django copies it to the manager, too
    return found


for _names, _way_out in ((_APPENDS, _APPEND), (_CHANGES, _CHANGE), (_DELETES, _TRIM)):
    for _name in _names:
        setattr(FactQuerySet, _name, _refusal(_name, _way_out))


# --- values by name -----------------------------------------------------------------------------------------------


class _Order(NamedTuple):
    """The fields of a model in the order in which Django's constructor takes their values."""

    places: dict[str, int]
    """Place by attribute."""
    defaults: list[Any]
    """The value of each field that is not given."""
    calls: list[tuple[str, int, Callable[[], Any]]]
    """Attributes and places of the fields whose default is made for each instance, and the functions that make it."""


@cache
def _order(model: type[Fact]) -> _Order | None:
    """Returns the order in which Django takes values for the model's fields as positional arguments.

    Returns None if the values must be passed as keyword arguments. The reason is that the model is abstract, or that it
    has a base class after ``Fact`` with its own constructor.
    """
    bases = model.__mro__[model.__mro__.index(Fact) + 1 :]
    makes = next(base for base in bases if "__init__" in vars(base))
    if model._meta.abstract or makes is not models.Model:
        return None
    found = _Order({}, [], [])
    for place, field in enumerate(model._meta.concrete_fields):
        default: Any = None
        if field.generated:
            default = models.DEFERRED
        elif type(field).get_default is not models.Field.get_default or (
            field.has_default() and callable(field.default)
        ):
            found.calls.append((field.attname, place, field.get_default))
        else:
            default = field.get_default()
        if not field.generated:
            found.places[field.attname] = place
        found.defaults.append(default)
    return found


# --- foreign keys -------------------------------------------------------------------------------------------------


@cache
def _relations(model: type[models.Model]) -> tuple[Any, ...]:
    private = [field for field in model._meta.private_fields if hasattr(field, "fk_field")]
    return *(field for field in model._meta.concrete_fields if field.is_relation), *private


def take_related_keys(fact: Fact) -> None:
    """Sets foreign keys as Django's ``save`` does, if a related object was saved only after it was assigned to the fact.

    Raises ``ValueError`` if a related object was not saved. Otherwise the foreign key would silently be NULL.
    """
    relations = _relations(type(fact))
    if relations:
        fact._prepare_related_fields_for_save(operation_name="append", fields=relations)  # type: ignore[attr-defined]


def _refuse_cascade(sender: type[models.Model], origin: Any = None, **kwargs: Any) -> None:
    """Raises ``FactIsFixed`` if a fact is about to be deleted because the row is deleted to which its foreign key points.

    This receiver of ``pre_delete`` also makes Django delete such facts one by one. Without any receiver Django would
    delete them in one statement, which sends no signal.
    """
    given = origin.model if isinstance(origin, models.QuerySet) else type(origin)
    if not issubclass(given, sender):
        way_out = (
            f"Deleting a {given.__name__} would delete facts that point to it. Keep it, or declare the foreign key with "
            "on_delete=models.DO_NOTHING and db_constraint=False, or keep its ID in a field without a foreign key."
        )
        _refuse(sender, "delete", way_out)


def _watch(sender: type[models.Model], **kwargs: Any) -> None:
    if issubclass(sender, Fact):
        pre_delete.connect(_refuse_cascade, sender=sender, dispatch_uid=f"streams.facts {sender._meta.label}")


class_prepared.connect(_watch, dispatch_uid="streams.facts")


def keys_that_cascade(model: type[models.Model]) -> list[models.ForeignKey[Any, Any]]:
    """Returns the foreign keys of a model of facts whose ``on_delete`` would change or delete facts."""
    harmless = (models.DO_NOTHING, models.PROTECT, models.RESTRICT)
    return [
        field
        for field in model._meta.concrete_fields
        if isinstance(field, models.ForeignKey) and field.remote_field.on_delete not in harmless
    ]
