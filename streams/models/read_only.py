"""Querysets for other services. They have methods for the usual queries, and refuse to write.

Every model that other services import has a manager ``read`` with such a queryset, beside Django's own ``objects``. The
manager does not depend on permissions in the database. For more safety, use a role that may only read
(``docs/how-to/use-the-models-from-another-service.md``). ``writable()`` returns a queryset that can write.
"""

from __future__ import annotations

from typing import Any, Generic, NoReturn, TypeVar

from django.db import models

from streams.errors import NotWritable

Row = TypeVar("Row", bound=models.Model)
_WRITES = (
    "create", "acreate", "bulk_create", "abulk_create", "update", "aupdate", "bulk_update", "abulk_update", "delete", "adelete",
    "get_or_create", "aget_or_create", "update_or_create", "aupdate_or_create", "select_for_update",
)  # fmt: skip


class ReadOnlyQuerySet(models.QuerySet[Row], Generic[Row]):
    """A queryset that only reads: every method that writes or locks raises ``NotWritable``."""

    def writable(self) -> models.QuerySet[Row]:
        """Returns a queryset of the same rows that may write.

        For tests and repairs only. The caller must know which other data depends on the rows.
        """
        return models.QuerySet(self.model, self.query.chain(), self.db)


def _refuse(name: str) -> Any:
    def refuse(self: ReadOnlyQuerySet[Any], *args: Any, **kwargs: Any) -> NoReturn:
        raise NotWritable(
            f"{self.model.__name__}.read.{name}: this manager only reads. Rows come in by persist or by a stream's "
            f"append; to write nevertheless, use {self.model.__name__}.read.writable()."
        )

    refuse.__name__ = name
    refuse.queryset_only = False  # type: ignore[attr-defined]  # so that Django copies it to the manager, too
    return refuse


for _name in _WRITES:
    setattr(ReadOnlyQuerySet, _name, _refuse(_name))
