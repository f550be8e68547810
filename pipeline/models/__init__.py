"""Tables of the pipeline: jobs, refused lines, loaded rooms, and the live derived tables.

Staging tables are not models: each job creates and drops its own (``pipeline.importing.staging_tables``).
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField
from streams.jobs.models import Job, JobState

__all__ = [
    "BatchLedger",
    "ComparedRooms",
    "ImportSource",
    "ImportedRoom",
    "Job",
    "JobState",
    "MendedRoom",
    "MirroredServer",
    "QuarantinedLine",
    "RoomStatistics",
    "SourceWrite",
]


class QuarantinedLine(models.Model):
    """A line that an import did not load: file and line number, the reason, and the first bytes of the line.

    ``content`` is binary, because a line may hold NUL.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE)
    file = models.TextField()
    line = models.BigIntegerField(help_text="counted from 1")
    reason = models.TextField(help_text="a word, such as not-json or room-known")
    detail = models.TextField(db_default="")
    content = models.BinaryField(help_text="the first bytes of the line")

    class Meta:
        db_table = "pipeline_quarantinedline"
        ordering: ClassVar = ["job", "file", "line"]
        indexes: ClassVar = [models.Index(fields=["job", "reason"], name="pipeline_quarantined_reason")]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.reason}"


class ImportedRoom(models.Model):
    """A room that an import has loaded, with counts of its events. The row commits together with the room."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE)
    room_id = IdentifierField()
    imported = models.BigIntegerField()
    rejected = models.BigIntegerField()
    unresolved = models.BigIntegerField(help_text="events whose state needs resolution")
    loaded_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pipeline_importedroom"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "room_id"], name="pipeline_importedroom_once"),
        ]

    def __str__(self) -> str:
        return f"{self.room_id}: {self.imported}"


class BatchLedger(models.Model):
    """The ledger of the live pipeline: for each query, the positions up to which the query's tables include every fact.

    A row is updated in the transaction that changes the tables, so each batch is applied exactly once. The cursors of
    the query's reader (``StoredCursor``) move with it.
    """

    query = models.TextField(primary_key=True)
    batch_id = models.BigIntegerField(help_text="Spark's number, since the query was started")
    offsets = models.JSONField(help_text="{stream: {writer: position}} up to which the tables hold every fact")
    batches = models.BigIntegerField(db_default=0)
    applied_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pipeline_batchledger"

    def __str__(self) -> str:
        return f"{self.query} {self.batch_id}"


from pipeline.models.imports import ImportSource  # noqa: E402 - after the table of jobs
from pipeline.models.mirror import MirroredServer  # noqa: E402
from pipeline.models.resync import ComparedRooms, MendedRoom  # noqa: E402
from pipeline.models.spark_writes import SourceWrite  # noqa: E402 - after the table of jobs
from pipeline.models.statistics import RoomStatistics  # noqa: E402 - after the tables
