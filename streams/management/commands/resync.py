"""``manage.py resync WHAT …``: repairs stored data.

Which words there are is declared by the modules of the packages ``operations`` of ``events``, ``pipeline`` and ``streams``.
"""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``resync``."""

    verb = "resync"
    help = "Set right what cannot go on by itself."
