"""Opens an archive. All files of the archive are checked before the first file is used. Needs no Django."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.archive.format import ArchivedFile, Manifest, digest_of, file_sha256, read_manifest
from pipeline.archive.parts import count_rows, read_batches
from pipeline.errors import ArchiveDamaged

__all__ = ["open_archive"]


def open_archive(folder: Path, step: Callable[[int], object] = lambda _bytes: None) -> Manifest:
    """Checks every file of an archive against its manifest, and returns the manifest. Raises ``ArchiveDamaged``.

    After each file, ``step`` is called with the file's size in bytes.
    """
    manifest = read_manifest(folder)
    for file in manifest.files:
        path = folder / file.name
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
        _check_rows(path, file)
        step(file.size)
    return manifest


def _check_rows(path: Path, file: ArchivedFile) -> None:
    """Checks a file's rows against its manifest entry ``file``: first the row count in the footer, then the digest of the rows.

    A correct SHA-256 of the file's bytes is not enough, because the author of a forged manifest can compute it for any
    file.
    """
    if (found := count_rows(path)) != file.rows:  # before rows are read: the manifest bounds the work
        raise ArchiveDamaged(
            f"{path} has {found:,} rows, and the manifest says {file.rows:,}. Take another copy of the archive; nothing was "
            "changed in the database."
        )
    if digest_of(file.table, read_batches(path, file.table)) != (file.rows, file.digest):
        raise ArchiveDamaged(
            f"{path} does not hold the rows that the manifest describes: their digest differs. Take another copy of the archive; "
            "nothing was changed in the database."
        )
