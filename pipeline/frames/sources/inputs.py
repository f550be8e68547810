"""Opens the inputs of ``import_events``, divides them into parts, and reads the rows of a part.

Executors read parts with this module, so it does not import Django.

An input is named by a path or a URL: the path of a file or of a folder of Parquet files, or the ``postgresql://`` URL
of a Synapse database. The content of a file determines its format: JSON Lines (plain or compressed), Parquet, or a
Synapse SQLite file. All inputs are inspected before the first input is read. The error for an unusable input names the
input.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from events.format.parsing import ANNOUNCING
from pipeline.errors import SourceChanged, UnusableSource
from pipeline.frames.sources import lines, parquet, synapse_db
from pipeline.frames.sources.parts import BrokenLine, Form, Line, Part, PassedLines

__all__ = [
    "MOST_FILES",
    "Input",
    "bytes_of_inputs",
    "check_unchanged",
    "input_names",
    "is_url",
    "open_inputs",
    "parts_of_inputs",
    "read_part",
    "unchanged",
]

MOST_FILES = 100_000
_URL_SCHEMES = ("postgresql://", "postgres://")
_SINK = "_spark_metadata"
#: How many bytes of events a byte of a file may hold.
_BYTES_OF_EVENTS = {Form.LINES: 1, Form.SQLITE: 1, Form.GZIP: 8, Form.ZSTD: 8, Form.PARQUET: 8}


@dataclass(frozen=True, slots=True)
class Input:
    """A file or database from which events are read.

    ``path`` is the path or URL to open. ``name`` is for display and for the job's row. ``identity`` has figures such as
    the file's size, which must not change while the job runs.
    """

    path: str
    name: str
    form: Form
    identity: Mapping[str, Any]


def is_url(name: str) -> bool:
    """Returns true for the URL of a PostgreSQL database."""
    return name.startswith(_URL_SCHEMES)


def input_names(names: Sequence[str]) -> list[str]:
    """Converts names of inputs to the form that a job stores: absolute paths, and URLs without passwords."""
    return [synapse_db.name_of(name) if is_url(name) else str(Path(name).absolute()) for name in names]


def open_inputs(names: Sequence[str]) -> list[Input]:
    """Opens and inspects the named inputs, and returns them. Raises ``UnusableSource`` for the first unusable input."""
    found: list[Input] = []
    for name in names:
        found += [_database(name)] if is_url(name) else [_file(path) for path in _files(name)]
        if len(found) > MOST_FILES:
            raise UnusableSource(f"More than {MOST_FILES:,} files. Import them in several runs.")
    return found


def _files(name: str) -> list[Path]:
    path = Path(name).absolute()
    if not path.is_dir():
        return [path]
    if (path / _SINK).exists():
        raise UnusableSource(
            f"{name} is the sink of a streaming query: only Spark can tell which of its files count. "
            "Read it with Spark and write it again, or name the files."
        )
    files = (file for file in path.rglob("*.parquet") if file.is_file())
    found = sorted(file for file in files if not _is_hidden(file.relative_to(path)))
    if not found:
        raise UnusableSource(f"The folder {name} holds no *.parquet files. Name the files, or another folder.")
    return found


def _is_hidden(path: Path) -> bool:
    """Returns true for a file that Spark ignores as hidden.

    For instance, a killed Spark job leaves files in a folder ``_temporary``. These files are not part of the Parquet
    table.
    """
    return any(part.startswith(("_", ".")) and "=" not in part for part in path.parts)


def _file(path: Path) -> Input:
    try:
        str(path).encode()
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnusableSource(
                f"{path} is no file that can be read more than once, by several tasks. Write what it gives to a file first."
            )
        with path.open("rb") as file:
            head = file.read(len(synapse_db.MAGIC))
        if head == synapse_db.MAGIC:
            form = Form.SQLITE
        else:
            form = Form.PARQUET if head.startswith(parquet.MAGIC) else lines.compression_of(head)
        identity = _identity(path, form)
    except UnicodeEncodeError as error:
        raise UnusableSource(
            f"The name {str(path)!r} is no UTF-8, so it cannot be written down. Rename the file."
        ) from error
    except OSError as error:
        raise UnusableSource(f"Cannot read {path}: {error.strerror}. Name readable files.") from error
    return Input(str(path), str(path), form, identity)


def _at_rest(path: Path, form: Form) -> dict[str, Any]:
    """Returns figures that change when the file changes: figure's name -> value. The file's content is not read.

    For a SQLite file, the figures include the size of its WAL file.
    """
    about = path.stat()
    found: dict[str, Any] = {"size": about.st_size, "modified_ns": about.st_mtime_ns}
    if form is Form.SQLITE:
        pending = path.with_name(f"{path.name}-wal")
        found["pending"] = pending.stat().st_size if pending.exists() else 0
    return found


def _identity(path: Path, form: Form) -> dict[str, Any]:
    identity = _at_rest(path, form)
    if form is Form.PARQUET:
        parquet.check_file(path)
    elif form is not Form.SQLITE:
        lines.check_text(path, form)
    else:
        schema, bounds = synapse_db.inspect(form, str(path), str(path))
        identity |= {"schema": schema, "bounds": [list(part) for part in bounds]}
    return identity


def _database(dsn: str) -> Input:
    name = synapse_db.name_of(dsn)
    schema, bounds = synapse_db.inspect(Form.POSTGRESQL, dsn, name)
    return Input(dsn, name, Form.POSTGRESQL, {"schema": schema, "bounds": [list(part) for part in bounds]})


def bytes_of_inputs(inputs: Sequence[Input]) -> float:
    """Returns about how many bytes the events of the inputs have. The size of a PostgreSQL database counts as infinite."""
    return sum(
        inf if source.form is Form.POSTGRESQL else source.identity["size"] * _BYTES_OF_EVENTS[source.form]
        for source in inputs
    )


def unchanged(found: Input, before: Mapping[str, Any]) -> Input:
    """Returns the input ``found`` with the identity ``before``, which the job stored when it began.

    Raises ``SourceChanged`` if the input is a file that has changed since then.

    A PostgreSQL database may have grown since then. The returned input has only the events that the database had when
    the job began.
    """
    if found.form is not Form.POSTGRESQL and dict(found.identity) != dict(before):
        raise _changed(found)
    return replace(found, identity=before)


def check_unchanged(inputs: Sequence[Input]) -> None:
    """Raises ``SourceChanged`` if one of the files has changed since it was opened."""
    for source in inputs:
        if source.form is Form.POSTGRESQL:
            continue
        try:
            now = _at_rest(Path(source.path), source.form)
        except OSError as error:
            raise _changed(source) from error
        if any(source.identity[key] != value for key, value in now.items()):
            raise _changed(source)


def _changed(source: Input) -> SourceChanged:
    return SourceChanged(
        f"{source.name} has changed since the import began, so nothing of it was loaded after that. Start a new import, "
        "without --resume, when it is at rest."
    )


@contextmanager
def parts_of_inputs(inputs: Sequence[Input], part_bytes: int) -> Iterator[list[Part]]:
    """Yields one list with the parts of all inputs, in the order of the inputs. Raises ``UnusableSource``.

    Parts must be read before the ``with`` block ends. All parts of a PostgreSQL source share a snapshot, which ends
    with the block.
    """
    with ExitStack() as stack:
        yield [part for number, source in enumerate(inputs) for part in _parts(stack, number, source, part_bytes)]


def _parts(stack: ExitStack, number: int, source: Input, part_bytes: int) -> list[Part]:
    if source.form is Form.PARQUET:
        return parquet.parts_of(number, Path(source.path))
    if source.form in (Form.POSTGRESQL, Form.SQLITE):
        parts = synapse_db.parts_of(number, source.form, source.path, source.name, source.identity["bounds"])
        snapshot = (
            stack.enter_context(synapse_db.share_snapshot(source.path)) if source.form is Form.POSTGRESQL else None
        )
        return [replace(part, snapshot=snapshot) for part in parts]
    return lines.parts_of(number, Path(source.path), part_bytes)


def announcing_rows(part: Part, limit_bytes: int) -> Iterator[Line | BrokenLine | PassedLines]:
    """Yields the rows of a part that may announce a room version. May also yield other rows.

    For a file of lines, the last item is a ``PassedLines`` with the number of lines in the part.
    """
    if part.form is Form.PARQUET:
        return parquet.announcing_rows(part)
    if part.form in (Form.POSTGRESQL, Form.SQLITE):
        return synapse_db.announcing_rows(part)
    return lines.announcing_lines(part, limit_bytes, ANNOUNCING)


def read_part(part: Part, limit_bytes: int) -> Iterator[Line | BrokenLine]:
    """Yields the rows of a part, in order."""
    if part.form is Form.PARQUET:
        return parquet.read_rows(part)
    if part.form in (Form.POSTGRESQL, Form.SQLITE):
        return synapse_db.read_rows(part)
    return lines.read_lines(part, limit_bytes)
