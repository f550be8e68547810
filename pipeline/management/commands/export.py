"""``manage.py export``: writes rooms, events, state and memberships to Parquet files, through Spark.

Exit status 0: all is written; 1: the export failed, and the folder is as it was; 2: unusable arguments.
"""

from __future__ import annotations

from pipeline.export.kind import ExportKind, ExportSubject
from streams.jobs.command import JobCommand

__all__ = ["Command"]


class Command(JobCommand):
    """The command that runs the job and prints its summary."""

    help = (
        "Write rooms, events, state and memberships to Parquet files, by rooms and days, all of one moment; of redacted events "
        "what the redaction left."
    )

    examples = (
        ("export /data/export --since 2026-01-01", "this year, all four tables"),
        ("export /data/export events --room '!room:example.org'", "the events of one room"),
        ("export /data/export --overwrite --json", "everything again, the outcome as JSON"),
    )

    subject = ExportSubject(ExportKind())
