"""``manage.py archive ROOM FOLDER``: writes a room, or its older history, to Parquet files. Deletes nothing.

Exit status 0: the archive is written; 1: no archive was written; 2: unusable arguments.
"""

from __future__ import annotations

from pipeline.archive.kind import ArchiveKind
from streams.jobs.command import JobCommand, JobSubject

__all__ = ["Command"]


class Command(JobCommand):
    """The command that writes an archive."""

    help = "Write a room, or its history, to Parquet files that restore takes back."

    examples = (
        ("archive '!room:example.org' /backup", "the whole room"),
        ("archive '!room:example.org' /backup --before '$event'", "what purge history would delete"),
    )

    subject = JobSubject(ArchiveKind())
