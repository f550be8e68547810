"""The options of the format ``replsite``, parsed and checked (pure).

Names are case-insensitive, as everywhere in Spark. A wrong option raises ``ValueError``. The error names the option,
the allowed values and the value that was given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.source.offsets import Vector
from streams.core.recorded import is_recorded

__all__ = ["ReadOptions", "WriteOptions"]

_READ = ("dsn", "stream", "view", "maxRows", "rowsPerPartition", "startingOffsets", "readerName")
_WRITE = ("dsn", "stream", "writer", "writeId")
_VIEWS = ("writer", "linear")
_LARGEST_ROWS = 1_000_000_000
_LONGEST_NAME = 200
_MAX_ROWS = 100_000
_ROWS_PER_PARTITION = 50_000
_WRITER = "spark"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options for reading a stream."""

    dsn: str
    stream: str
    linear: bool = False
    max_rows: int = _MAX_ROWS
    rows_per_partition: int = _ROWS_PER_PARTITION
    starting_offsets: str = "earliest"
    reader_name: str = ""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ReadOptions:
        """Returns the parsed options. Raises ``ValueError``."""
        _check_names(options, _READ)
        if (view := options.get("view") or "writer") not in _VIEWS:
            raise ValueError(f"the option view is {view!r}; it may be {' or '.join(_VIEWS)}")
        linear = view == "linear"
        if linear and is_recorded(options["stream"]):
            raise ValueError(
                "a recorded stream has no linear position, since its positions restart with each life of its writers; "
                "use view=writer"
            )
        starting = options.get("startingOffsets") or "earliest"
        if starting not in ("earliest", "latest"):
            _vector(starting)
        return cls(
            dsn=options["dsn"],
            stream=options["stream"],
            linear=linear,
            max_rows=_rows(options, "maxRows", _MAX_ROWS, least=0),
            rows_per_partition=_rows(options, "rowsPerPartition", _ROWS_PER_PARTITION, least=1),
            starting_offsets=starting,
            reader_name=_name(options, "readerName"),
        )

    @property
    def starting_vector(self) -> Vector | None:
        """Returns the vector in ``startingOffsets``, or None if the option is ``earliest`` or ``latest``."""
        return None if self.starting_offsets in ("earliest", "latest") else _vector(self.starting_offsets)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options for appending facts to a stream."""

    dsn: str
    stream: str
    writer: str = _WRITER
    write_id: str = ""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> WriteOptions:
        """Returns the parsed options. Raises ``ValueError``."""
        _check_names(options, _WRITE)
        if is_recorded(options["stream"]):
            raise ValueError(f"{options['stream']!r} is recorded from another server, so nothing can be appended to it")
        writer = _name(options, "writer") or _WRITER
        return cls(options["dsn"], options["stream"], writer, _name(options, "writeId"))


def _check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    lower = {name.lower() for name in known}
    if odd := sorted(name for name in options if name.lower() not in lower):
        raise ValueError(
            f"the source 'replsite' has no option {', '.join(map(repr, odd))} here; it has {', '.join(known)}"
        )
    if missing := [name for name in ("dsn", "stream") if not options.get(name)]:
        raise ValueError(f"the source 'replsite' needs the option {' and '.join(missing)}")


def _rows(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name) or str(default)
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not least <= number <= _LARGEST_ROWS:
        raise ValueError(f"the option {name} is {text[:40]!r}; it must be a number of {least} to {_LARGEST_ROWS} rows")
    return number


def _name(options: Mapping[str, str], name: str) -> str:
    text = options.get(name) or ""
    if len(text) > _LONGEST_NAME or not text.isprintable():
        raise ValueError(f"the option {name} must be printable text of at most {_LONGEST_NAME} characters")
    return text


def _vector(text: str) -> Vector:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(at) is int and 0 <= at < 2**63 for at in found.values()):
        raise ValueError(
            f"the option startingOffsets is {text[:100]!r}; it may be earliest, latest or a JSON object of positions such as "
            f'{{"master": 42}}'
        )
    return found
