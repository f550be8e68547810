"""``manage.py purge WHAT …``: deletes old data."""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``purge``."""

    verb = "purge"
    help = "Delete what is old."
