"""``manage.py purge WHAT …``: delete what is old. The subjects come from the rooms (``streams.maintenance.subjects``)."""

from __future__ import annotations

from streams.maintenance.subjects import MaintenanceCommand

__all__ = ["Command"]


class Command(MaintenanceCommand):
    """Delete what is old, safely beside those who write and read."""

    name = "purge"
    help = "Delete what is old."
