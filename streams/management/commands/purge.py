"""``manage.py purge WHAT …``: deletes old data. Apps register the subjects in ``streams.maintenance.subjects``."""

from __future__ import annotations

from streams.maintenance.subjects import MaintenanceCommand

__all__ = ["Command"]


class Command(MaintenanceCommand):
    """The command ``purge``. It may run while writers and readers run."""

    name = "purge"
    help = "Delete what is old."
