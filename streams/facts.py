"""The abstract model of a fact: one row of a stream's table.

Rows come in only through a reservation (``streams.writing.reservation``) or a bulk load that reserved its IDs; a fact never
changes afterwards, and goes only when its stream is trimmed. The engine and trimming write by SQL. Everything else that Django
offers for writing is refused with ``FactIsFixed``: methods of instances, of every manager, of related managers, the loading of
fixtures, and the cascade of a foreign key.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from django.db import models
from django.db.models.functions import Now
from django.db.models.signals import class_prepared, pre_delete

from streams.core import lookup
from streams.errors import FactIsFixed, UnknownTable

__all__ = ["Fact", "FactQuerySet", "keys_that_cascade"]

Row = TypeVar("Row", bound=models.Model)
_APPENDS = ("create", "acreate", "bulk_create", "abulk_create", "_insert")
_CHANGES = (
    "update", "aupdate", "bulk_update", "abulk_update", "_update",
    "get_or_create", "aget_or_create", "update_or_create", "aupdate_or_create",
)  # fmt: skip
_DELETES = ("delete", "adelete", "_raw_delete")


class FactQuerySet(models.QuerySet[Row], Generic[Row]):
    """Reads like any queryset; whatever would write raises ``FactIsFixed``."""

    def writable(self) -> models.QuerySet[Row]:
        """The same rows, to be written: for tests and repairs, where no reader has seen the rows or all of them begin anew."""
        return models.QuerySet(self.model, self.query.chain(), self.db)


class Fact(models.Model):
    """Base of every model whose rows are facts.

    ``stream_id`` is the ID (a fact of several rows has it several times), ``instance_name`` the writer, ``received_at``
    the time of the insert: lag in seconds is counted from it.
    """

    #: Field that holds the ID; a subclass with another name says so and drops ``stream_id``.
    id_field: ClassVar[str] = "stream_id"

    stream_id = models.BigIntegerField(db_index=True)
    instance_name = models.TextField()
    received_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[models.Manager[Any]] = FactQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refused: facts are appended through their stream."""
        _refuse(type(self), "save", _APPEND)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refused: facts stay until their stream is trimmed."""
        _refuse(type(self), "delete", _TRIM)


#: Django's own writing (related managers, cascades, fixtures) goes through the base manager. Models inherit the name of their
#: parent's. In ``Meta`` it would be an option of every model, which migrations ask for.
Fact._meta.base_manager_name = "objects"

_APPEND = "Append it through its stream, in the transaction that it belongs to: registry.stream_of({model}).append({model}(...))."
_CHANGE = (
    "A fact never changes, because readers may have read it: append another one that says what is true now, "
    "registry.stream_of({model}).append({model}(...))."
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
    except UnknownTable:  # nobody has bound it yet
        pass
    else:
        stream = declaration.name
        way_out = _KEPT if way_out == _TRIM and not declaration.trimmable else way_out
    raise FactIsFixed(f"{name}.{what}: refused, {name} is a fact. {way_out.format(model=name, stream=stream)}")


def _refusal(name: str, way_out: str) -> Any:
    def refuse(self: FactQuerySet[Any], *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self.model, name, way_out)

    def update(self: FactQuerySet[Any], *args: Any, **kwargs: Any) -> int:
        if self.exists():
            _refuse(self.model, name, way_out)
        return 0  # Django asks so for a foreign key that is to be set to null, also where nothing points to what is deleted

    found: Any = update if name == "update" else refuse
    found.__name__ = name
    found.queryset_only = False  # Django copies it to the manager
    return found


for _names, _way_out in ((_APPENDS, _APPEND), (_CHANGES, _CHANGE), (_DELETES, _TRIM)):
    for _name in _names:
        setattr(FactQuerySet, _name, _refusal(_name, _way_out))


# --- foreign keys -------------------------------------------------------------------------------------------------


def _refuse_cascade(sender: type[models.Model], origin: Any = None, **kwargs: Any) -> None:
    """Refuse the deletion of a fact that comes from the deletion of what it points to.

    A receiver of ``pre_delete`` also keeps Django from deleting such rows in one statement without asking anybody.
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
    """The foreign keys of a model of facts whose ``on_delete`` would change or delete facts."""
    harmless = (models.DO_NOTHING, models.PROTECT, models.RESTRICT)
    return [
        field
        for field in model._meta.concrete_fields
        if isinstance(field, models.ForeignKey) and field.remote_field.on_delete not in harmless
    ]
