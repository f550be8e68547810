"""``manage.py room WHAT …``: what is done to rooms.

``room check``, ``mend``, ``archive``, ``restore``, ``export`` and ``compress`` are files of ``pipeline/operations``, each with
its exit status; ``room purge`` is in ``events/operations``.
"""

from __future__ import annotations

from streams.jobs.command import VerbCommand


class Command(VerbCommand):
    """The command ``room``."""

    verb = "room"
    help = "Check, mend, purge, archive, restore, export or compress rooms."
