"""Registers every kind of job, and the subjects that this app adds to the maintenance commands.

This module imports the modules of all kinds, which takes a fifth of the time in which a command starts. So this module
is not imported when Django starts, but when a registry is first read.
"""

from __future__ import annotations

from pipeline.archive.kind import ArchiveKind
from pipeline.archive.restore import RestoreKind
from pipeline.export.kind import ExportKind
from pipeline.importing.kind import ImportKind
from pipeline.maintenance import subjects
from pipeline.maintenance.compress import CompressStateKind
from pipeline.maintenance.kinds import CensorKind, CheckStreamsKind
from pipeline.maintenance.purge import PurgeHistoryKind, PurgeOrphansKind, PurgeRetentionKind
from pipeline.maintenance.purge_room import PurgeRoomKind
from pipeline.maintenance.remove_archive import RemoveArchiveKind
from pipeline.maintenance.resync import ResyncKind
from streams.jobs import run

__all__ = ["register_kinds", "register_subjects"]


def register_kinds() -> None:
    """Registers every kind of job."""
    run.register(
        ArchiveKind(), CensorKind(), CheckStreamsKind(), CompressStateKind(), ExportKind(), ImportKind(),
        PurgeHistoryKind(), PurgeOrphansKind(), PurgeRetentionKind(), PurgeRoomKind(), RemoveArchiveKind(), ResyncKind(),
        RestoreKind(),
    )  # fmt: skip


def register_subjects() -> None:
    """Registers the subjects of ``purge`` and ``resync``."""
    subjects.register_subjects()
