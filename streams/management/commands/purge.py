"""``manage.py purge WHAT …``: deletes old data.

Which words there are is declared by the modules of the packages ``operations`` of ``events``, ``pipeline`` and ``streams``.
"""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``purge``."""

    verb = "purge"
    help = "Delete what is old."
