"""``manage.py restore FOLDER``: restores a room from an archive.

Exit status 0: restored; 1: the archive is damaged, or does not fit this database; 2: unusable arguments.
"""

from __future__ import annotations

from pipeline.archive.restore import RestoreKind
from streams.jobs.command import JobCommand, JobSubject

__all__ = ["Command"]


class Command(JobCommand):
    """The command that restores an archive."""

    help = "Put an archive of a room back, byte for byte, with states and visibility. Safe beside writers; may be repeated."

    examples = (
        ("restore /backup/room-1a2b", "the folder that archive or purge named"),
        ("restore /backup/room-1a2b --json", "the outcome as JSON"),
    )

    subject = JobSubject(RestoreKind())
