"""The abstract model of a fact: one row of a stream's table.

An INSERT is an append, by Django (``create``, ``save``, ``bulk_create``), by ``Stream.append``, or by SQL. A fact never changes
afterwards, and is deleted only when its stream is trimmed: triggers of the table refuse anything else (``streams.holds``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from django.db import connections, models, transaction
from django.db.models.expressions import DatabaseDefault
from django.db.models.functions import Now

from streams.core import lookup
from streams.errors import ForeignFact
from streams.holds.maintenance import changing_facts

__all__ = ["Fact", "FactQuerySet", "all_rows", "keys_that_cascade", "prepare_for_insert"]

Row = TypeVar("Row", bound=models.Model)


class FactQuerySet(models.QuerySet[Row], Generic[Row]):
    """A queryset of facts. ``create`` and ``bulk_create`` append. The database refuses changes."""

    def bulk_create(  # type: ignore[override]  # the options are those of Django's
        self, objs: Iterable[Row], batch_size: int | None = None, **options: Any
    ) -> list[Row]:
        """Appends these facts. Raises ``ForeignFact`` for options about rows that exist: facts never change.

        ``batch_size`` is the most facts of one statement. All of them are appended in one transaction.
        """
        if given := sorted(name for name, value in options.items() if value):
            raise ForeignFact(
                f"{self.model.__name__}.bulk_create: {', '.join(given)} cannot be, as facts never change."
            )
        facts = list(objs)
        size = batch_size or len(facts) or 1
        with transaction.atomic(using=self.db):
            for first in range(0, len(facts), size):
                _append(self.model, facts[first : first + size], self.db)
        return facts

    def writable(self) -> models.QuerySet[Row]:
        """Returns a queryset of the same rows that may write.

        For tests and repairs only: no reader may have seen the rows, or all readers must begin again afterwards.
        """
        return _Writable(self.model, self.query.chain(), self.db)


class _Writable(models.QuerySet[Row], Generic[Row]):
    """A queryset whose writes go past the triggers that keep facts as they are."""


def _past_the_triggers(name: str) -> Any:
    method = getattr(models.QuerySet, name)

    @wraps(method)
    def write(self: _Writable[Any], *args: Any, **kwargs: Any) -> Any:
        with changing_facts(connections[self.db]):
            return method(self, *args, **kwargs)

    return write


for _name in ("bulk_create", "update", "delete", "_raw_delete"):
    setattr(_Writable, _name, _past_the_triggers(_name))


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

    def clean_fields(self, exclude: Any = None) -> None:
        """Checks the fields as Django does, except for the ID and the writer, which the append fills in."""
        super().clean_fields({self.id_field, "instance_name", *(exclude or ())})

    def _do_insert(self, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool) -> Any:
        if raw:
            return super()._do_insert(manager, using, fields, returning_fields, raw)  # type: ignore[misc]
        _append(type(self), [self], using)
        names = [field.attname for field in returning_fields]
        if any(getattr(self, name) is None or isinstance(getattr(self, name), DatabaseDefault) for name in names):
            found = all_rows(type(self), using).filter(**{self.id_field: getattr(self, self.id_field)})
            return [found.values_list(*names).get()]
        return [tuple(getattr(self, name) for name in names)]

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Loads fields from the database.

        A fact that was made from a row on the wire has no primary key. Such a fact is found in the table by its ID, and
        gets the primary key of the row.
        """
        using, key = using or self._state.db, self._meta.pk.attname
        if self.__dict__.get(key) is None and (number := getattr(self, self.id_field)) is not None:
            found = all_rows(type(self), using).filter(**{self.id_field: number})
            self.pk = found.values_list("pk", flat=True).get()
            if fields == [key]:
                return
        super().refresh_from_db(using, fields, all_rows(type(self), using) if from_queryset is None else from_queryset)

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
#: No form asks for what the append fills in. Not ``editable=False``, which would be a change in the migrations of every project.
for _field in Fact._meta.fields:
    _field.formfield = lambda **_: None  # type: ignore[method-assign]


def _append(model: type[models.Model], facts: Sequence[Any], using: str) -> None:
    stream: Any = lookup.stream_of(model)
    if facts:
        stream.append(*facts, using=using)


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


# --- what Django's save does before an insert ---------------------------------------------------------------------


@cache
def _to_prepare(model: type[models.Model]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the relations of a model, and the fields whose values are made or changed when a row is saved."""
    private = [field for field in model._meta.private_fields if hasattr(field, "fk_field")]
    relations = *(field for field in model._meta.concrete_fields if field.is_relation), *private
    return relations, tuple(field for field in model._meta.concrete_fields if _makes_value(field))


def _makes_value(field: models.Field[Any, Any]) -> bool:
    if isinstance(field, models.DateField | models.TimeField) and type(field).__module__.startswith("django."):
        return field.auto_now or field.auto_now_add
    return type(field).pre_save is not models.Field.pre_save


def prepare_for_insert(fact: Fact) -> None:
    """Sets what Django's ``save`` sets: foreign keys of objects that were saved meanwhile, and values such as ``auto_now_add``.

    Stores files that a ``FileField`` was given. Raises ``ValueError`` if a related object was not saved. Otherwise the foreign
    key would silently be NULL.
    """
    relations, fields = _to_prepare(type(fact))
    if relations:
        fact._prepare_related_fields_for_save(operation_name="append", fields=relations)  # type: ignore[attr-defined]
    for field in fields:
        setattr(fact, field.attname, field.pre_save(fact, True))


def keys_that_cascade(model: type[models.Model]) -> list[models.ForeignKey[Any, Any]]:
    """Returns the foreign keys of a model of facts whose ``on_delete`` would change or delete facts."""
    harmless = (models.DO_NOTHING, models.PROTECT, models.RESTRICT)
    return [
        field
        for field in model._meta.concrete_fields
        if isinstance(field, models.ForeignKey) and field.remote_field.on_delete not in harmless
    ]
