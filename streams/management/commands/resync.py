"""``manage.py resync WHAT …``: repairs stored data. Apps register the subjects in ``streams.maintenance.subjects``."""

from __future__ import annotations

from streams.maintenance.subjects import MaintenanceCommand

__all__ = ["Command"]


class Command(MaintenanceCommand):
    """The command ``resync``. It repairs positions, readers' cursors and derived data that cannot recover by themselves."""

    name = "resync"
    help = "Set right what cannot go on by itself."
