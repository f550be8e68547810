"""``manage.py purge WHAT …``: delete what is old. The subjects come from the rooms (``streams.maintenance``)."""

from __future__ import annotations

from streams.maintenance import MaintenanceCommand

__all__ = ["Command"]


class Command(MaintenanceCommand):
    """Delete what is old, safely beside those who write and read."""

    name = "purge"
    help = "Delete what is old."
