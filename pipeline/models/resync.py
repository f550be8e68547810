"""What executors mended and nobody was told of yet, and how far jobs over many rooms are (imported by ``models``)."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField

__all__ = ["ComparedRooms", "MendedRoom"]


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


class ComparedRooms(models.Model):
    """Rooms that an unfinished job over many rooms has done; it goes on with the others when it was killed."""

    job = models.ForeignKey("pipeline.Job", on_delete=models.CASCADE)
    through = IdentifierField(help_text="all rooms up to this one are done; empty: none")
    room_ids = ArrayField(IdentifierField(), help_text="done as well")
    counted = models.JSONField(null=True, help_text="figures of the job so far; null but in its newest row")

    class Meta:
        db_table = "pipeline_comparedrooms"
        verbose_name_plural = "compared rooms"
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"job {self.job_id}: {len(self.room_ids)} rooms behind {self.through}"
