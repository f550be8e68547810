"""Defines the format of a room's archive: its tables, its manifest, and the digests that check both (no Django).

An archive is a folder with ``manifest.json``, written last, and Parquet files with the rows of one room at one moment.
Events are sorted from the latest to the oldest by (depth, stream position), in files of some ten thousand. Times are
microseconds since 1970.

An import can read the files of events, too. So the columns that it needs (``event_id``, ``room_version``, ``json``,
``stream_ordering``, ``outlier``, ``rejected_reason``, ``soft_failed``) have the names that it expects in a Parquet
file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ArchiveDamaged
from pipeline.private_files import open_new

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MANIFEST",
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
"""Ending of a folder's name while its archive is not finished."""
_FORMAT, _VERSION = "replsite archive", 1
_LARGEST_MANIFEST = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_NULL = "\\N"


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """A table of an archive: its columns with their types, and the columns that its digest covers."""

    columns: Mapping[str, str]
    digested: tuple[str, ...] = ()

    @property
    def of_digest(self) -> tuple[str, ...]:
        """The columns that the digest covers: ``digested``, or all columns if ``digested`` is empty."""
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
    """Parses columns such as ``name type, name type``. A column without a type is text.

    ``digested`` are the columns that the digest covers. If there are none, the digest covers all columns.
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

``leaf`` holds forward extremities, ``gap`` backward extremities, ``hole`` timeline gaps, and ``change`` the facts of the
current state. ``group`` and ``delta`` hold the state groups of the archived events and all groups that these build on."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file of an archive.

    ``digest`` is computed by the database from the rows, ``sha256`` from the bytes of the file.
    """

    name: str
    table: str
    rows: int
    size: int
    sha256: str
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of an archive: the events below depth ``cut``, or the whole room if ``cut`` is None.

    ``positions`` are the lowest and the highest stream position in the room when the archive was made. ``size`` is in
    bytes.
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
        """Returns the files of a table, in their order."""
        return [file for file in self.files if file.table == table]

    def rows(self, table: str) -> int:
        """Returns the number of rows of a table."""
        return sum(file.rows for file in self.of(table))

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, followed by a checksum of its text. It is safely on disk when this returns."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(manifest)}, indent=1, sort_keys=True)
    seal = hashlib.sha256(text.encode()).hexdigest()
    with open_new(folder / MANIFEST) as file:
        file.write(f"{text}\n{seal}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest of an archive. Raises ``ArchiveDamaged`` if it is missing or differs from what was written."""
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
        value["files"] = tuple(ArchivedFile(**one) for one in value["files"])
        value["positions"] = tuple(value["positions"])
        return Manifest(**value)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ArchiveDamaged(
            f"{path} is none that this program has written. Take another copy of the archive."
        ) from error


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def digest_of(table: str, batches: Iterable[pa.RecordBatch]) -> tuple[int, str]:
    """Returns (number of rows, digest) of these rows. The digest depends on their order.

    It is the SHA-256 over the SHA-256 of each row. The query of ``parts.digest_sql`` computes the same in the database.
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
