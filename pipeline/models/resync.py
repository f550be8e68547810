"""Tables of jobs that check or repair many rooms (imported by ``models``).

One table has the repaired rooms whose cache invalidations are still to be appended. The other table has the rooms that
an unfinished job has done.
"""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField

__all__ = ["ComparedRooms", "MendedRoom"]


class MendedRoom(models.Model):
    """A room whose current state an executor repaired. The row is written in the transaction of the repair.

    Executors append no facts. So the driver later appends the facts that make caches drop the room, and deletes the row
    in the same transaction. If the driver was killed before it appended these facts, the next job appends them.
    """

    room_id = IdentifierField()
    user_ids = ArrayField(IdentifierField(), help_text="users whose membership was wrong")
    mended_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pipeline_mendedroom"
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return str(self.room_id)  # a page's text escapes itself


class ComparedRooms(models.Model):
    """Rooms that an unfinished job over many rooms has done.

    If the job is killed, the next run of the job continues with the other rooms.
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
