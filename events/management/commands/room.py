"""``manage.py room WHAT …``: what is done to rooms."""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``room``."""

    verb = "room"
    help = "Check, mend, purge, archive, restore, export or compress rooms."
