"""The table of writes by Spark to streams (imported by ``models``)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

__all__ = ["SourceWrite"]


class SourceWrite(models.Model):
    """A write of facts to a stream by a Spark job.

    The row commits together with the facts. So if a write is repeated under the same name, no fact is appended twice.
    Rows are deleted after 90 days.
    """

    write_id = models.TextField(primary_key=True, help_text="option writeId, else the name of the job's staging table")
    stream = models.TextField()
    writer = models.TextField(help_text="who appended; empty for a write of nothing")
    facts = models.BigIntegerField()
    first_id = models.BigIntegerField(null=True)
    last_id = models.BigIntegerField(null=True)
    committed_at = models.DateTimeField(db_default=Now(), db_index=True)

    class Meta:
        db_table = "pipeline_sourcewrite"
        ordering: ClassVar = ["-committed_at"]

    def __str__(self) -> str:
        return f"{self.write_id}: {self.facts} to {self.stream}"
