"""The table of jobs. It belongs to the app ``pipeline``: its label is part of permissions, addresses and migrations."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

__all__ = ["Job", "JobState"]


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
        app_label = "pipeline"
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
