"""Finds the archives and exports in the site's folders, with their sizes. Reads no database.

A folder is recognised only if every file in it has a name that an archive or an export gives to its files. So the
removal of a recognised folder never deletes other files. Symbolic links are not followed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pipeline.archive import format as archives
from pipeline.archive.folders import is_path
from pipeline.conf import pipeline_settings
from pipeline.errors import ArchiveDamaged
from pipeline.export import folder as exports
from pipeline.export import tables as export_tables
from pipeline.export.folder import exports_folder
from streams.jobs.errors import UnusableArguments

__all__ = ["FOLDERS_READ", "WrittenFolder", "find_folder", "find_folders", "with_contents"]

#: The most folders that are read for a list.
FOLDERS_READ = 5_000
_LARGEST_MANIFEST = 4_000_000
_OF_ARCHIVE = re.compile(rf"{re.escape(archives.MANIFEST)}|(?:{'|'.join(archives.TABLES)})-[0-9]{{5,}}\.parquet")
_ENDINGS = ("", exports.PARTIAL, exports.OLD)
_TABLES_OF_EXPORT = frozenset(table + ending for table in export_tables.TABLES for ending in _ENDINGS)
_FILES_OF_EXPORT = frozenset(exports.MANIFEST + ending for ending in _ENDINGS)


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """An archive or an export on the disk. ``with_contents`` reads the last four fields from its manifest."""

    path: Path
    is_export: bool
    is_finished: bool
    """False if the folder has no manifest. Then a job is writing the folder, or was killed while it wrote or removed the
    folder."""
    files: int
    bytes: int
    made_at: float
    """Seconds since 1970. Until the manifest is read, the time of the last change in the folder."""
    room_id: str | None = None
    """The room of an archive, or of an export of one room."""
    rooms: int | None = None
    """The number of rooms that an export was limited to."""
    events: int | None = None
    is_damaged: bool = False

    @property
    def kind(self) -> str:
        """The kind in words: ``archive`` or ``export``, with ``unfinished`` or ``damaged`` before it."""
        how = "damaged " if self.is_damaged else "" if self.is_finished else "unfinished "
        return how + ("export" if self.is_export else "archive")


def find_folders(most: int = FOLDERS_READ) -> tuple[list[WrittenFolder], bool]:
    """Returns (archives and exports, the largest first; true if all folders were read).

    Reads at most ``most`` folders below each of the two site folders.
    """
    found, is_whole = [], True
    for top, is_export in _tops():
        for number, path in enumerate(_folders(top, deep=not is_export)):
            if number >= most:
                is_whole = False
                break
            if (folder := _recognised(path, is_export)) is not None:
                found.append(folder)
    return sorted(found, key=lambda folder: (-folder.bytes, str(folder.path))), is_whole


def find_folder(name: object) -> WrittenFolder:
    """Returns the archive or export ``name``, with the fields of its manifest. Raises ``UnusableArguments``.

    ``name`` is an absolute path, or a path relative to the folder of archives or to the folder of exports.
    """
    if not isinstance(name, str) or not name or not is_path(name):
        raise UnusableArguments(f"folder must be the path of an archive or an export, not {name!r:.100}.")
    places = list(_places(name))
    if not places:
        raise UnusableArguments(
            f"{name!r:.200} is not below {' or '.join(str(top) for top, _ in _tops())}. Archives and exports elsewhere are "
            "removed by their owner, with rm -r."
        )
    for path, _ in places:
        if Path(os.path.realpath(path)) != path:  # Path.resolve raises for links in a circle, before Python 3.13
            raise UnusableArguments(f"{name!r:.200} is a symbolic link, or lies behind one. Name the folder itself.")
    for path, is_export in places:
        if (found := _recognised(path, is_export)) is not None:
            return with_contents(found)
    if not any(os.path.isdir(path) for path, _ in places):  # noqa: PTH112 - Path.is_dir raises if it is too long
        raise UnusableArguments(f"There is no folder {places[0][0]}.")
    raise UnusableArguments(
        f"{name!r:.200} is no archive and no export: it is empty, or has something that neither of them writes."
    )


def with_contents(found: WrittenFolder) -> WrittenFolder:
    """Returns a copy of ``found`` with the fields of its manifest: room, events, and the time when it was made."""
    if not found.is_finished:
        return found
    return _read_export(found) if found.is_export else _read_archive(found)


def _tops() -> Sequence[tuple[Path, bool]]:
    """Returns (path, false) for the folder of archives, and (path, true) for the folder of exports.

    Symbolic links in the paths are resolved.
    """
    return ((pipeline_settings().archive_folder.resolve(), False), (exports_folder().resolve(), True))


def _places(name: str) -> Iterator[tuple[Path, bool]]:
    """Yields (path, true if it is an export's path) for each path that ``name`` may mean.

    A relative name may mean a path of an archive and a path of an export.
    """
    given = (pipeline_settings().archive_folder.absolute(), exports_folder().absolute())
    for (top, is_export), written in zip(_tops(), given, strict=True):
        for base in dict.fromkeys((top, written)):
            path = Path(os.path.normpath(base / name))
            if path != base and path.is_relative_to(base):
                yield top / path.relative_to(base), is_export
                break


def _folders(top: Path, *, deep: bool) -> Iterator[Path]:
    """Yields the folders in ``top``. If ``deep`` is true, also yields the folders at all levels below them."""
    left = [top]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                inner = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:  # it is not there (yet or any more), or may not be read
            continue
        for path in inner:
            yield Path(path)
        left += [Path(path) for path in reversed(inner)] if deep else []


def _recognised(path: Path, is_export: bool) -> WrittenFolder | None:
    """Returns the archive or export in the folder ``path``. Returns None if the folder is neither."""
    try:
        with os.scandir(path) as entries:
            there = list(entries)
        is_ours = _is_of_export if is_export else _is_of_archive
        is_unfinished_archive = not is_export and path.name.endswith(archives.PARTIAL)
        if not all(map(is_ours, there)) or not (there or is_unfinished_archive):
            return None
        files, size = _amount(there)
        changed_at = path.stat().st_mtime
    except OSError:
        return None
    manifest = exports.MANIFEST if is_export else archives.MANIFEST
    is_finished = not is_unfinished_archive and any(entry.name == manifest for entry in there)
    return WrittenFolder(path, is_export, is_finished, files, size, changed_at)


def _is_of_archive(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) and _OF_ARCHIVE.fullmatch(entry.name) is not None


def _is_of_export(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return entry.name in _TABLES_OF_EXPORT
    return entry.is_file(follow_symlinks=False) and entry.name in _FILES_OF_EXPORT


def _amount(entries: Sequence[os.DirEntry[str]]) -> tuple[int, int]:
    """Returns (number of files, sum of their sizes in bytes).

    Counts the files among ``entries``, and all files in the folders among ``entries``.
    """
    files = size = 0
    left = list(entries)
    while left:
        entry = left.pop()
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as inner:
                left += inner
        else:
            files += 1
            size += entry.stat(follow_symlinks=False).st_size
    return files, size


def _read_archive(found: WrittenFolder) -> WrittenFolder:
    try:
        manifest = archives.read_manifest(found.path)
        made_at = datetime.fromisoformat(manifest.archived_at).timestamp()
    except (ArchiveDamaged, ValueError):
        return replace(found, is_damaged=True)
    return replace(found, room_id=manifest.room_id, events=manifest.rows("event"), made_at=made_at)


def _read_export(found: WrittenFolder) -> WrittenFolder:
    try:
        with (found.path / exports.MANIFEST).open("rb") as file:
            manifest = json.loads(file.read(_LARGEST_MANIFEST))
        rooms, tables = manifest["rooms"], manifest["tables"]
        events = int(tables["events"]["rows"]) if "events" in tables else None
        made_at, number = int(manifest["made_at_ms"]) / 1000, None if rooms is None else len(rooms)
        room_id = str(rooms[0]) if number == 1 else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return replace(found, is_damaged=True)
    return replace(found, room_id=room_id, rooms=number, events=events, made_at=made_at)
