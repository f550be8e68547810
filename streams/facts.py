"""The abstract model of a fact: one row of a stream's table.

Assumes that rows come in only through a reservation (``streams.reservations``) or a bulk load that reserved its IDs; a fact
never changes afterwards, so ``save`` and ``delete`` on a stored one are refused.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from streams.errors import FactIsFixed

__all__ = ["Fact"]


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

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refused: facts are appended through their stream."""
        raise FactIsFixed(
            f"{type(self).__name__} is a fact: it cannot be saved by itself or changed. Append it through its stream, "
            f"e.g. registry.stream_of({type(self).__name__}).append(fact)."
        )

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refused: facts stay until their stream is trimmed."""
        raise FactIsFixed(f"{type(self).__name__} is a fact and cannot be deleted; trim its stream instead.")
