"""Tables of the pipeline: jobs, refused lines, loaded rooms, and the live derived tables.

Staging tables are not models: each job creates and drops its own (``pipeline.importing.staging_tables``).
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField

__all__ = [
    "BatchLedger",
    "ComparedRooms",
    "ImportSource",
    "ImportedRoom",
    "Job",
    "JobState",
    "MendedRoom",
    "QuarantinedLine",
    "RoomStatistics",
    "SourceWrite",
]


class JobState(models.TextChoices):
    """States of a job: ``queued -> running -> done | failed | cancelled``. A failed or killed job may run again."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"


class Job(models.Model):
    """A job: bulk work that a command or ``manage.py runjobs`` does.

    If a job has the state ``running`` and its advisory lock is free, the job's process was killed. If a command runs
    the job itself, ``queued_at`` is null. Otherwise the job was queued for ``manage.py runjobs``.
    """

    kind = models.TextField(help_text="the command")
    state = models.TextField(choices=JobState.choices, db_default=JobState.RUNNING)
    arguments = models.JSONField(default=dict)
    asked_by = models.TextField(db_default="", help_text="user, or user and host of the command")
    stage = models.TextField(db_default="")
    unit = models.TextField(db_default="", help_text="what done and total count")
    done = models.BigIntegerField(db_default=0, help_text="of the stage, in its own unit")
    total = models.BigIntegerField(null=True)
    rate = models.FloatField(null=True, help_text="per second, in this stage")
    host = models.TextField(db_default="")
    process_id = models.BigIntegerField(null=True)
    attempts = models.SmallIntegerField(db_default=0, help_text="how often runjobs has begun it")
    error = models.TextField(db_default="")
    before = models.JSONField(null=True, help_text="figures before the work")
    after = models.JSONField(null=True, help_text="the same figures after it")
    summary = models.JSONField(null=True)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    cancel_asked_by = models.TextField(db_default="", help_text="who wants it ended; it stops at its next step")
    confirmed_from = models.BigIntegerField(
        null=True, unique=True, help_text="the dry run whose figures somebody has confirmed; each is carried out once"
    )

    class Meta:
        db_table = "pipeline_job"
        ordering: ClassVar = ["-id"]
        permissions: ClassVar = [
            ("cancel_job", "Can cancel jobs"),
            ("queue_job", "Can queue jobs that change nothing: checks and dry runs"),
            ("carry_out_job", "Can have jobs carried out: what a dry run has shown, imports, restores, exports"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], name="pipeline_job_open", condition=models.Q(state__in=["queued", "running"])),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}: {self.state}"

    @property
    def seconds_left(self) -> float | None:
        """The remaining seconds of the present stage at its present rate. None if they cannot be computed."""
        if self.state != JobState.RUNNING or not self.rate or self.total is None:
            return None
        return max(self.total - self.done, 0) / self.rate


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
from pipeline.models.resync import ComparedRooms, MendedRoom  # noqa: E402
from pipeline.models.spark_writes import SourceWrite  # noqa: E402 - after the table of jobs
from pipeline.models.statistics import RoomStatistics  # noqa: E402 - after the tables
