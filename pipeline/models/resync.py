"""Tables of resyncs over many rooms: repaired rooms not announced yet, and finished rooms (imported by ``models``)."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField

__all__ = ["ComparedRooms", "MendedRoom"]


class MendedRoom(models.Model):
    """A room whose current state was repaired. The row is written in the transaction of the repair.

    Executors append no facts. So the driver announces the repair to caches of the room, and deletes the row in that
    transaction. The next job announces what a killed job left.
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
    """Rooms that an unfinished job over many rooms has completed.

    If the job was killed, its next run continues with the others.
    """

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
