"""Defines the names in the folder of an export, the folder of queued exports, and the lock of an export's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.conf import pipeline_settings
from pipeline.errors import ExportRunning
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder

__all__ = ["MANIFEST", "OLD", "PARTIAL", "export_lock", "exports_folder"]

MANIFEST = "export.json"
PARTIAL = ".partial"
OLD = ".replaced"
#: Sites in several schemas of one database may export to the same folder. So the name of this lock does not contain a
#: schema.
_KEY = "SELECT hashtextextended('replsite.export:' || %s, 0)"
_ONLY_ONE = "SELECT pg_try_advisory_lock(%s)"


def exports_folder() -> Path:
    """Returns the folder below which queued exports are written."""
    return pipeline_settings().folder / "exports"


@contextmanager
def export_lock(cursor: Any, folder: Path) -> Iterator[None]:
    """Holds the lock of an export's folder while the block runs. So no other job writes to the folder or removes the folder.

    Raises ``ExportRunning`` if another session holds the lock. ``cursor`` belongs to a connection that is used for nothing else.
    At the end of the block its transaction is rolled back.
    """
    cursor.execute(_KEY, [str(folder.resolve())])
    (key,) = cursor.fetchone()
    cursor.execute(_ONLY_ONE, [key])
    if not cursor.fetchone()[0]:
        raise ExportRunning(
            f"Another export to {folder} is at work{describe_lock_holder(cursor, key)}; see manage.py jobs."
        )
    try:
        yield
    finally:
        # Released here and not by closing the connection: the server ends the session some time later, and an export that
        # starts right now would find the lock taken.
        with suppress(driver.DatabaseError):
            cursor.execute("ROLLBACK; SELECT pg_advisory_unlock_all()")
