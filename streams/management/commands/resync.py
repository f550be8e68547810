"""``manage.py resync WHAT …``: repairs stored data."""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``resync``."""

    verb = "resync"
    help = "Set right what cannot go on by itself."
