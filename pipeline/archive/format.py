"""Defines the format of a room's archive: its tables, its manifest, and the digests that check both. Needs no Django.

An archive is a folder of Parquet files with the rows of one room. All rows are from one snapshot of the database. The
folder also has a ``manifest.json``, which is written after all other files. Events are sorted by (depth, stream
position), the latest first. A file of events has some ten thousand rows. Times are microseconds since 1970.

An import can also read an archive's files of events. So these columns have the names that an import expects in a
Parquet file: ``event_id``, ``room_version``, ``json``, ``stream_ordering``, ``outlier``, ``rejected_reason``,
``soft_failed``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ArchiveDamaged
from pipeline.private_files import open_new
from state.rules.room_versions import ROOM_VERSIONS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MANIFEST",
    "MOST_FILES",
    "ONE_FILE",
    "ONE_FILE_OF_WHOLE",
    "PARTIAL",
    "TABLES",
    "ArchivedFile",
    "ArchivedTable",
    "Manifest",
    "digest_of",
    "file_sha256",
    "read_manifest",
    "write_manifest",
]

MANIFEST = "manifest.json"
PARTIAL = ".partial"
"""The ending of a folder's name as long as its archive is not finished."""
_FORMAT, _VERSION = "replsite archive", 1
MOST_FILES = 20_000
"""The most files of an archive: some 200 million events. Code that opens an archive checks each file, so this number bounds
the work."""
_LARGEST_MANIFEST = 16 * 1024 * 1024
"""The largest size of a manifest in bytes. An entry of a file takes at most 400 bytes, so ``MOST_FILES`` entries fit."""
_FILE_NAME = re.compile(r"([a-z]+)-[0-9]{5,}\.parquet")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MOST = 2**63 - 1
_LONGEST_ROOM_ID = 255
_LONGEST_TEXT = 1000
_CHUNK_BYTES = 1024 * 1024
_NULL = "\\N"


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """A table of an archive: its columns with their types, and the columns that its digest covers."""

    columns: Mapping[str, str]
    digested: tuple[str, ...] = ()

    @property
    def of_digest(self) -> tuple[str, ...]:
        """The columns that the table's digest covers: ``digested``, or all columns if ``digested`` is empty."""
        return self.digested or tuple(self.columns)

    def schema(self) -> pa.Schema:
        """Returns the columns as an Arrow schema."""
        import pyarrow as pa  # noqa: PLC0415 - only where files are read or written

        kinds = {
            "text": pa.string(),
            "bigint": pa.int64(),
            "boolean": pa.bool_(),
            "bytea": pa.binary(),
            "text[]": pa.list_(pa.string()),
        }
        return pa.schema([(name, kinds[kind]) for name, kind in self.columns.items()])


def _table(text: str, *digested: str) -> ArchivedTable:
    """Parses a list of columns such as ``name type, name type``. Returns the table. A column without a type is text.

    ``digested`` are the columns that the table's digest covers. If ``digested`` is empty, the digest covers all
    columns.
    """
    pairs = [part.split() for part in text.split(",")]
    return ArchivedTable({pair[0]: pair[1] if pair[1:] else "text" for pair in pairs}, digested)


TABLES: Mapping[str, ArchivedTable] = {
    "room": _table(
        "room_id, room_version, creator, create_event_id, current_state_unresolved boolean, visibility_unresolved boolean"
    ),
    "event": _table(
        "event_id, room_version, json bytea, stream_ordering bigint, instance_name, received_us bigint, type, state_key, sender, "
        "topological_ordering bigint, origin_server_ts bigint, membership, redacts, relates_to, outlier boolean, "
        "rejected_reason, soft_failed boolean, redacted_by, state_unresolved boolean, censored_us bigint, state_group bigint, "
        "prev_event_ids text[], auth_event_ids text[]",
        "event_id", "stream_ordering", "topological_ordering", "state_group", "outlier", "rejected_reason", "redacted_by", "json",
    ),
    "group": _table("id bigint, prev_group bigint, chain bigint, hops bigint, keys bigint, rows_to_read bigint"),
    "delta": _table("chain bigint, state_group bigint, type, state_key, event_id"),
    "leaf": _table("event_id"),
    "gap": _table("event_id"),
    "hole": _table("stream_ordering bigint, instance_name"),
    "current": _table("type, state_key, event_id, membership"),
    "change": _table(
        "stream_ordering bigint, instance_name, received_us bigint, type, state_key, event_id, prev_event_id"
    ),
    "visibility": _table("user_id, kind, first bigint, last bigint"),
}  # fmt: skip
"""Tables of an archive, with their columns.

``leaf`` holds forward extremities, ``gap`` backward extremities, ``hole`` timeline gaps, and ``change`` the changes of the
current state. ``group`` and ``delta`` hold the state groups of the archived events, and all groups that these are deltas
to."""


ONE_FILE = ("room", "leaf", "gap", "hole", "visibility")
"""Tables that every archive has, in one file each, even if it is empty."""
ONE_FILE_OF_WHOLE = ("current", "change")
"""Tables that only the archive of a whole room has, in one file each. A purge of history does not change these tables."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file of an archive.

    The database computes ``digest`` from the rows. ``sha256`` is computed from the bytes of the file.
    """

    name: str
    table: str
    rows: int
    size: int
    sha256: str
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of an archive. It has the events below depth ``cut``, or the whole room if ``cut`` is None.

    ``positions`` are the lowest and the highest stream position of the room's events when the archive was made.
    """

    room_id: str
    room_version: str
    cut: int | None
    delete_local: bool
    server_name: str
    archived_at: str
    job: int
    positions: tuple[int, int]
    files: tuple[ArchivedFile, ...] = field(default_factory=tuple)

    def of(self, table: str) -> list[ArchivedFile]:
        """Returns the files of a table, in the order of its rows."""
        return [file for file in self.files if file.table == table]

    def rows(self, table: str) -> int:
        """Returns the number of rows of a table."""
        return sum(file.rows for file in self.of(table))

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest and a checksum of its text. When this function returns, the file is on disk (fsync)."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(manifest)}, indent=1, sort_keys=True)
    seal = hashlib.sha256(text.encode()).hexdigest()
    with open_new(folder / MANIFEST) as file:
        file.write(f"{text}\n{seal}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest of an archive.

    Raises ``ArchiveDamaged`` if the manifest is missing or does not match its checksum. Also raises ``ArchiveDamaged``
    if a field has a value that ``write_manifest`` never writes.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ArchiveDamaged(f"{path} is too large for a manifest.")
        content = path.read_bytes()
    except OSError as error:
        raise ArchiveDamaged(f"{folder} is no finished archive: {path.name}: {error.strerror}.") from error
    text, _, seal = content.rstrip(b"\n").rpartition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != seal:
        raise ArchiveDamaged(f"{path} is not as it was written. Take another copy of the archive; nothing was changed.")
    try:
        value = json.loads(text)
        if (value.pop("format", None), value.pop("version", None)) != (_FORMAT, _VERSION):
            raise ArchiveDamaged(f"{path} is of another format, or of a later version than this program knows.")
        if len(value["files"]) > MOST_FILES:
            raise ArchiveDamaged(
                f"{path} lists {len(value['files']):,} files, and an archive has at most {MOST_FILES:,}. Take another copy of "
                "the archive; nothing was changed."
            )
        value["files"] = tuple(ArchivedFile(**file) for file in value["files"])
        value["positions"] = tuple(value["positions"])
        manifest = Manifest(**value)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ArchiveDamaged(
            f"{path} is none that this program has written. Take another copy of the archive."
        ) from error
    if wrong := next(_wrong_fields(manifest), None):
        raise ArchiveDamaged(
            f"{path} is none that this program has written: {wrong}. Take another copy of the archive; nothing was changed."
        )
    return manifest


def _wrong_fields(manifest: Manifest) -> Iterator[str]:
    """Yields a description of each field whose value ``write_manifest`` never writes.

    The manifest's checksum detects damage, but not forgery, because anyone can compute the checksum of a forged text.
    """
    if not _is_text(manifest.room_id, _LONGEST_ROOM_ID) or not manifest.room_id.startswith("!"):
        yield f"{manifest.room_id!r:.100} is no room ID"
    if not _is_text(manifest.room_version) or manifest.room_version not in ROOM_VERSIONS:
        yield f"{manifest.room_version!r:.100} is no room version that this program knows"
    if manifest.cut is not None and not _is_number(manifest.cut, -_MOST):
        yield f"cut is {manifest.cut!r:.100} and should be a depth or null"
    if type(manifest.delete_local) is not bool:
        yield f"delete_local is {manifest.delete_local!r:.100} and should be true or false"
    for name in ("server_name", "archived_at"):
        if not _is_text(getattr(manifest, name)):
            yield f"{name} is {getattr(manifest, name)!r:.100} and should be a text"
    if not _is_number(manifest.job, -_MOST):
        yield f"job is {manifest.job!r:.100} and should be a number"
    if len(manifest.positions) != 2 or not all(_is_number(position, -_MOST) for position in manifest.positions):
        yield f"positions is {manifest.positions!r:.100} and should be two numbers"
    seen: set[str] = set()
    for file in manifest.files:
        yield from _wrong_fields_of_file(file)
        if file.name in seen:
            yield f"the file {file.name} is listed twice"
        seen.add(file.name)
    for table in (*ONE_FILE, *(ONE_FILE_OF_WHOLE if manifest.cut is None else ())):
        if (number := len(manifest.of(table))) != 1:
            yield f"it lists {number} files of the table {table}, and an archive has one"


def _wrong_fields_of_file(file: ArchivedFile) -> Iterator[str]:
    """Yields a description of each field in the manifest's entry of a file whose value ``write_manifest`` never writes."""
    named = _FILE_NAME.fullmatch(file.name) if _is_text(file.name) else None
    if named is None or named[1] != file.table or named[1] not in TABLES:
        yield f"it names a file {file.name!r:.100} of a table {file.table!r:.100} that no archive has"
    for name in ("rows", "size"):
        if not _is_number(getattr(file, name), 0):
            yield f"{name} of {file.name!r:.100} is {getattr(file, name)!r:.100} and should be a number from 0 on"
    for name in ("sha256", "digest"):
        value = getattr(file, name)
        if not _is_text(value) or not _SHA256.fullmatch(value):
            yield f"{name} of {file.name!r:.100} is {value!r:.100} and should be a SHA-256 in hex"


def _is_text(value: object, longest: int = _LONGEST_TEXT) -> bool:
    """Returns true for a text of at most ``longest`` characters that PostgreSQL can store.

    PostgreSQL cannot store NUL and lone surrogates.
    """
    return isinstance(value, str) and len(value) <= longest and not _UNSTORABLE.search(value)


def _is_number(value: object, least: int) -> bool:
    """Returns true for an integer of at least ``least`` that fits into a ``bigint``. Returns false for a ``bool``."""
    return type(value) is int and least <= value <= _MOST


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def digest_of(table: str, batches: Iterable[pa.RecordBatch]) -> tuple[int, str]:
    """Returns (number of rows, digest) of the rows in ``batches``. The digest depends on the order of the rows.

    The digest is the SHA-256 of the SHA-256 values of all rows. In the database, the query of ``parts.digest_sql``
    computes the same digest.
    """
    whole, rows = hashlib.sha256(), 0
    for batch in batches:
        for line in _lines(table, batch):
            whole.update(hashlib.sha256(line).digest())
            rows += 1
    return rows, whole.hexdigest()


def _lines(table: str, batch: pa.RecordBatch) -> Iterator[bytes]:
    names = [name for name in TABLES[table].of_digest if name != "json"]
    columns = [[_text(value) for value in batch.column(name).to_pylist()] for name in names]
    lines = ("\x1f".join(values).encode() for values in zip(*columns, strict=True))
    if "json" not in TABLES[table].of_digest:
        yield from lines
        return
    for line, content in zip(lines, batch.column("json").to_pylist(), strict=True):
        yield line + b"\x1f" + (content or b"")


def _text(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
