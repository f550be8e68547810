"""Opens an archive (no Django). All files are checked before any of them is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.archive.format import TABLES, Manifest, file_sha256, read_manifest
from pipeline.errors import ArchiveDamaged

__all__ = ["open_archive"]


def open_archive(folder: Path, step: Callable[[int], object] = lambda _bytes: None) -> Manifest:
    """Checks every file of an archive against its checksum, and returns the manifest. Raises ``ArchiveDamaged``.

    After each file, ``step`` is called with the file's size in bytes.
    """
    manifest = read_manifest(folder)
    for file in manifest.files:
        path = folder / file.name
        if path.name != file.name or file.table not in TABLES:
            raise ArchiveDamaged(f"{folder}: the manifest names a file {file.name!r:.100} that no archive has.")
        if path.exists() and not path.is_file():  # opening a named pipe would block until it has a writer
            raise ArchiveDamaged(f"{path} is part of the archive and is no file. Take another copy of the archive.")
        try:
            found = file_sha256(path)
        except OSError as error:
            raise ArchiveDamaged(f"{path} is part of the archive and cannot be read: {error.strerror}.") from error
        if found != file.sha256:
            raise ArchiveDamaged(
                f"{path} is not as it was written: a bit was flipped, or it was cut off. Take another copy of the archive; "
                "nothing was changed in the database."
            )
        step(file.size)
    return manifest
