"""``manage.py resync WHAT …``: set right what fell behind. The subjects come from the rooms (``maintenance.subjects``)."""

from __future__ import annotations

from streams.maintenance.subjects import MaintenanceCommand

__all__ = ["Command"]


class Command(MaintenanceCommand):
    """Set right what cannot go on by itself."""

    name = "resync"
    help = "Set right what cannot go on by itself."
