"""``manage.py resync WHAT …``: repairs what fell behind. Apps register the subjects in ``streams.maintenance.subjects``."""

from __future__ import annotations

from streams.maintenance.subjects import MaintenanceCommand

__all__ = ["Command"]


class Command(MaintenanceCommand):
    """The command ``resync``, for what cannot continue by itself."""

    name = "resync"
    help = "Set right what cannot go on by itself."
