"""``manage.py compress_state``: rewrites the state groups of rooms so that they take fewer rows.

Exit status 0: done, or no room would shrink; 1: a room is damaged, another job works on a room, or the database cannot
be reached; 2: unusable arguments, or a room that does not exist.
"""

from __future__ import annotations

from pipeline.maintenance.compress import CompressStateKind
from streams.jobs.command import JobCommand, JobSubject

__all__ = ["Command"]


class Command(JobCommand):
    """The command that runs the job and prints its summary."""

    help = (
        "Rewrite the state groups of rooms to as few rows as they need. Safe beside writers and readers; may be interrupted and "
        "repeated; rooms that would not shrink stay as they are."
    )

    examples = (
        ("compress_state --all --dry-run", "how many rows would be saved"),
        ("compress_state '!room:example.org'", "one room"),
        ("compress_state --all --least-saving 20", "only rooms that save a fifth or more"),
    )

    subject = JobSubject(CompressStateKind())
