"""What executors mended and nobody was told of yet (imported by ``models``)."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField

__all__ = ["MendedRoom"]


class MendedRoom(models.Model):
    """A room whose current state was mended; the row is written in that transaction.

    Executors append no facts, so the driver tells whoever keeps something of the room, and deletes the row with that. What a
    killed job left is told by the next one.
    """

    room_id = IdentifierField()
    user_ids = ArrayField(IdentifierField(), help_text="users whose membership was wrong")
    mended_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pipeline_mendedroom"
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.room_id
