"""What an archive of a room consists of: its tables, its manifest, and the digests by which both are checked (no Django).

An archive is a folder: ``manifest.json``, written last, and Parquet files with the rows of one room as they were at one moment.
Events come from the latest to the oldest by (depth, stream position), in files of some ten thousand; the columns that an import
reads (``event_id``, ``room_version``, ``json``, ``stream_ordering``, ``outlier``, ``rejected_reason``, ``soft_failed``) have the
names of its wrapper. Times are microseconds since 1970.
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
"""End of the name of a folder whose archive is not finished."""
_FORMAT, _VERSION = "replsite archive", 1
_LARGEST_MANIFEST = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_NULL = "\\N"


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """Columns of a table by the kind of their values; ``digested`` are those whose values make up its digest."""

    columns: Mapping[str, str]
    digested: tuple[str, ...] = ()

    @property
    def of_digest(self) -> tuple[str, ...]:
        """All columns, unless some are named."""
        return self.digested or tuple(self.columns)

    def schema(self) -> pa.Schema:
        """The same for Arrow."""
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
    """Columns as ``name kind, name kind``; without a kind it is text."""
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
"""Tables of an archive. ``leaf``, ``gap`` and ``hole`` are forward and backward extremities and timeline gaps, ``change`` the
facts of the current state; ``group`` and ``delta`` hold the groups of the archived events and all that these build on."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file: ``digest`` is what the database said of its rows, ``sha256`` that of its bytes."""

    name: str
    table: str
    rows: int
    size: int
    sha256: str
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds: events below depth ``cut``, null: the whole room, which then had ``positions`` from .. to."""

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
        """The files of a table, in their order."""
        return [file for file in self.files if file.table == table]

    def rows(self, table: str) -> int:
        """How many rows of a table there are."""
        return sum(file.rows for file in self.of(table))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest with its seal, safely on the disk when this returns."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(manifest)}, indent=1, sort_keys=True)
    seal = hashlib.sha256(text.encode()).hexdigest()
    with open_new(folder / MANIFEST) as file:
        file.write(f"{text}\n{seal}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an archive; raises ``ArchiveDamaged`` when there is none, or not as it was written."""
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
    """Of the bytes of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def digest_of(table: str, batches: Iterable[pa.RecordBatch]) -> tuple[int, str]:
    """(rows, digest) of rows in their order: SHA-256 over the SHA-256 of each, as the database computes it (``digest_sql``)."""
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
