"""The abstract model of a fact: one row of a stream's table.

Rows are inserted only through a reservation (``streams.writing.reservation``), or by a bulk load that reserved its IDs. A
fact never changes afterwards, and is deleted only when its stream is trimmed. The engine inserts and trims by SQL. All
ways in which Django itself writes raise ``FactIsFixed``: methods of instances, of all managers and of related managers,
the loading of fixtures, and the cascade of a foreign key.
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
    """A queryset that only reads: every method that writes raises ``FactIsFixed``."""

    def writable(self) -> models.QuerySet[Row]:
        """Returns a queryset of the same rows that may write.

        For tests and repairs only: no reader may have seen the rows, or all readers must begin again afterwards.
        """
        return models.QuerySet(self.model, self.query.chain(), self.db)


class Fact(models.Model):
    """The base of every model whose rows are facts.

    ``stream_id`` is the ID, which all rows of a fact share. ``instance_name`` is the writer. ``received_at`` is the
    time of the insert. A reader's lag in seconds is counted from it.
    """

    #: Field that holds the ID. A subclass may name another field and set ``stream_id`` to None.
    id_field: ClassVar[str] = "stream_id"

    stream_id = models.BigIntegerField(db_index=True)
    instance_name = models.TextField()
    received_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[models.Manager[Any]] = FactQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises ``FactIsFixed``: facts are appended through their stream."""
        _refuse(type(self), "save", _APPEND)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Raises ``FactIsFixed``: facts stay until their stream is trimmed."""
        _refuse(type(self), "delete", _TRIM)


#: Django's own writes (related managers, cascades, fixtures) go through the base manager. Models inherit its name from
#: their parent. In ``Meta`` it would be an option of every model, and would have to be in the migrations.
Fact._meta.base_manager_name = "objects"

_APPEND = "Append it through its stream, in the transaction that it belongs to: registry.stream_of({model}).append({model}(...))."
_CHANGE = (
    "A fact never changes, because readers may have read it: append another one with the present state, "
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
    except UnknownTable:  # the model is not bound yet
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
        return 0  # for a foreign key with SET_NULL, Django calls this even if no row points to the deleted row

    found: Any = update if name == "update" else refuse
    found.__name__ = name
    found.queryset_only = False  # so that Django copies it to the manager, too
    return found


for _names, _way_out in ((_APPENDS, _APPEND), (_CHANGES, _CHANGE), (_DELETES, _TRIM)):
    for _name in _names:
        setattr(FactQuerySet, _name, _refusal(_name, _way_out))


# --- foreign keys -------------------------------------------------------------------------------------------------


def _refuse_cascade(sender: type[models.Model], origin: Any = None, **kwargs: Any) -> None:
    """Raises ``FactIsFixed`` if a fact is about to be deleted because the row that it points to is deleted.

    This receiver of ``pre_delete`` also makes Django delete such rows one by one. Without any receiver Django would
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
