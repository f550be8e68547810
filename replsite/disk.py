"""Reads the free space of the disk of the data directory, which holds the embedded database, archives and imports."""

from __future__ import annotations

import shutil
from pathlib import Path

from replsite.conf import site_settings


def disk_free() -> tuple[Path, int]:
    """Returns the data directory, or its nearest parent that exists, and the number of free bytes of its disk."""
    folder = Path(site_settings().data_dir)
    while not folder.exists():
        folder = folder.parent
    return folder, shutil.disk_usage(folder).free


def disk_reserve() -> int:
    return site_settings().disk_reserve_bytes
