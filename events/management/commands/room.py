"""``manage.py room WHAT …``: what is done to rooms.

Which words there are is declared by the modules of the packages ``operations`` of ``events``, ``pipeline`` and ``streams``.
"""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``room``."""

    verb = "room"
    help = "Check, mend, purge, archive, restore, export or compress rooms."
