"""Stores rows as Parquet files in a folder. Spark tasks write and read these files with pyarrow.

A folder is a path, or a URL of a file system that pyarrow knows. Each task writes one file with a unique name. The
driver then writes the manifest, which lists the files of the tasks that succeeded. A killed, repeated or late task may
leave other files. They are never read. A folder without a manifest is not finished. ``keep`` may be called again for
such a folder.

Runs in Spark's driver and executors, without Django.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pipeline.frames.task_rows import BatchFunction, TaskRows
from pipeline.private_files import make_folder
from streams.jobs.errors import UnusableArguments
from streams.runtime.batches import bounded_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FILES", "MANIFEST", "Kept", "finish", "open_kept", "prepare", "writing"]

MANIFEST = "manifest.json"
FILES = "name string, rows bigint, bytes bigint, description string"
"""The columns of the frame that ``writing`` yields: the files that were written."""
Describing: TypeAlias = "Callable[[Iterator[pa.RecordBatch], list[str]], Iterator[pa.RecordBatch]]"
"""A function that yields the rows of a file unchanged. At the end, it appends a text about these rows to the list."""
_FORMAT = 2
_PREFIX, _SUFFIX = "rows-", ".parquet"
_COMPRESSION = "zstd"
#: The size of a row group. A task holds one row group in memory, while it writes and while it reads.
_GROUP_BYTES = 8 * 1024 * 1024
_ROWS_PER_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows in a finished folder. ``about`` is the content of the folder's manifest."""

    rows: TaskRows
    about: Mapping[str, Any]
    count: int
    """Number of rows."""
    descriptions: Sequence[str]
    """The text about each file that the argument ``describing`` of ``writing`` has made."""


def prepare(folder: str | Path) -> None:
    """Creates the folder, or removes the files that an unfinished ``keep`` has left in the folder.

    Raises ``UnusableArguments`` if the folder is finished, or has other files.
    """
    files, root = _located(folder)
    if "://" in str(folder):
        files.create_dir(root, recursive=True)
    else:
        make_folder(Path(root))
    names = [info.base_name for info in _listed(files, root)]
    if MANIFEST in names or not all(map(_is_ours, names)):
        raise UnusableArguments(f"{folder} exists already and is not empty. Name a new folder, or remove this one.")
    for name in names:
        files.delete_file(f"{root}/{name}")


def writing(folder: str | Path, describing: Describing | None = None) -> BatchFunction:
    """Returns a function that writes the rows of one task to a new file, and yields one row of ``FILES`` about the file.

    ``describing`` makes a text about the rows of the file. ``open_kept`` returns these texts in ``Kept.descriptions``.
    Without ``describing``, these texts are empty.
    """
    return partial(_write, str(folder), describing)


def finish(
    folder: str | Path, written: DataFrame, about: Mapping[str, Any], check: Callable[[], None] | None = None
) -> None:
    """Runs the Spark tasks of ``written``, which write the files. Then writes the manifest, which completes the folder.

    ``check`` is called after the tasks and before the manifest is written. ``check`` raises an error if the files must
    not be used, for instance because a source has changed.
    """
    found = sorted(tuple(row) for row in written.collect())
    if check is not None:
        check()
    files, root = _located(folder)
    text = json.dumps({"format": _FORMAT, **about, "files": found}, indent=1)
    # Written under another name and then renamed, so that there is never an incomplete manifest.
    fresh = f"{root}/{_PREFIX}{uuid4().hex}"
    with files.open_output_stream(fresh) as out:
        out.write(text.encode())
    files.move(fresh, f"{root}/{MANIFEST}")
    names = {name for name, *_ in found}
    for info in _listed(files, root):  # files of attempts that do not count
        if _is_ours(info.base_name) and info.base_name not in names:
            files.delete_file(info.path)


def open_kept(spark: SparkSession, folder: str | Path, kind: str) -> Kept:
    """Returns the rows of a finished folder, with a task for each file.

    Raises ``UnusableArguments`` if the folder has no manifest with this ``kind``, or if a file is missing or
    incomplete.
    """
    import pyarrow as pa  # noqa: PLC0415 - drivers only

    files, root = _located(folder)
    try:
        with files.open_input_stream(f"{root}/{MANIFEST}") as source:
            about = json.loads(source.read())
    except FileNotFoundError:
        raise UnusableArguments(f"{folder} is not finished, or is no folder of kept rows: no {MANIFEST}.") from None
    except (ValueError, pa.ArrowInvalid) as error:
        raise UnusableArguments(f"{folder}/{MANIFEST} cannot be read: {error}.") from error
    if (about.get("format"), about.get("kind")) != (_FORMAT, kind):
        raise UnusableArguments(f"{folder} has no {kind} of this version of the program. Compute them again.")
    sizes = {info.base_name: info.size for info in _listed(files, root)}
    if wrong := [name for name, _, size, _ in about["files"] if sizes.get(name) != size]:
        raise UnusableArguments(f"{folder}: the file {wrong[0]} is missing or incomplete. Compute the rows again.")
    shared = spark.sparkContext.broadcast([name for name, *_ in about["files"]])
    rows = TaskRows(spark, len(about["files"]), partial(_read, str(folder), shared))
    _, counts, _, descriptions = zip(*about["files"], strict=True) if about["files"] else ((), (), (), ())
    return Kept(rows, about, sum(counts), descriptions)


def _located(folder: str | Path) -> tuple[Any, str]:
    """Returns (file system of pyarrow, path of the folder in this file system)."""
    from pyarrow import fs  # noqa: PLC0415 - only where files are kept

    if "://" in str(folder):
        files, root = fs.FileSystem.from_uri(str(folder))
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), str(Path(folder).absolute())


def _listed(files: Any, root: str) -> Sequence[Any]:
    from pyarrow import fs  # noqa: PLC0415 - only where files are kept

    found: Sequence[Any] = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return found


def _is_ours(name: str) -> bool:
    return name.startswith(_PREFIX)


def _write(folder: str, describing: Describing | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import parquet  # noqa: PLC0415
    from pyspark import TaskContext  # noqa: PLC0415

    descriptions: list[str] = []
    described = batches if describing is None else describing(batches, descriptions)
    groups = map(pa.Table.from_batches, bounded_batches(described, attrgetter("nbytes"), _GROUP_BYTES))
    first = next(groups, None)
    if first is None:
        return
    context = TaskContext.get()
    files, root = _located(folder)
    name = f"{_PREFIX}{0 if context is None else context.partitionId():06d}-{uuid4().hex}{_SUFFIX}"
    rows = 0
    with files.open_output_stream(f"{root}/{name}") as out:
        with parquet.ParquetWriter(out, first.schema, compression=_COMPRESSION, write_statistics=False) as writer:
            for group in chain([first], groups):
                writer.write_table(group)
                rows += group.num_rows
        size = out.tell()
    about = {"name": [name], "rows": [rows], "bytes": [size], "description": ["".join(descriptions)]}
    yield pa.RecordBatch.from_pydict(about)


def _read(folder: str, names: Any, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet  # noqa: PLC0415 - executors only

    files, root = _located(folder)
    with files.open_input_file(f"{root}/{names.value[number]}") as source, parquet.ParquetFile(source) as file:
        for batch in file.iter_batches(_ROWS_PER_BATCH, columns=list(columns)):
            yield batch.select(list(columns))
