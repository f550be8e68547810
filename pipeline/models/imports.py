"""The table of the sources of imports, with one row for each file or database that an import reads."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

__all__ = ["ImportSource"]


class ImportSource(models.Model):
    """A file or database that an import reads, with its size and other figures at the time when the job began.

    A resumed job raises an error if a source has changed since that time.
    """

    job = models.ForeignKey("pipeline.Job", on_delete=models.CASCADE)
    number = models.IntegerField(help_text="its place among the job's sources")
    name = models.TextField(help_text="absolute path, or URL without password")
    form = models.TextField(help_text="lines, gzip, zstd, parquet, postgresql or sqlite")
    identity = models.JSONField(help_text="size and time of a file; schema version and stream orderings of a database")
    rows = models.BigIntegerField(null=True, help_text="lines or rows, blank ones too; null before they were counted")

    class Meta:
        db_table = "pipeline_importsource"
        ordering: ClassVar = ["job", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "number"], name="pipeline_importsource_once"),
        ]

    def __str__(self) -> str:
        return str(self.name)  # a page's text escapes itself
