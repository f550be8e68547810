"""The table by which tasks that load packs of rooms ask for stream IDs (imported by ``models``)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

__all__ = ["PackRequest"]


class PackRequest(models.Model):
    """A request of a task for the stream IDs of its pack, and the answer of the job's process.

    The job's process deletes the row when the task's transaction has ended.
    """

    transaction = models.BigIntegerField(primary_key=True, help_text="number of the task's transaction")
    job = models.ForeignKey("pipeline.Job", on_delete=models.CASCADE)
    writer = models.TextField(help_text="the job's writer, whose append lock the task holds")
    lease = models.BigIntegerField(help_text="of the writer, as the task has read it")
    counts = models.JSONField(help_text="number of IDs by stream")
    ids = models.JSONField(null=True, help_text="runs of IDs (first, last) by stream; null: not reserved yet")
    refused = models.TextField(null=True, help_text="why no IDs can be had")
    asked_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pipeline_packrequest"
        ordering: ClassVar = ["asked_at"]

    def __str__(self) -> str:
        return f"transaction {self.transaction} of job {self.job_id}"
