"""Lines of input files, as bytes, whatever is in them (pure but for reading the files).

A file is read in *parts*: a plain file in byte ranges, a gzip file as a whole. Every line gets its number within the part;
lines that are too long and archives that break off come out as ``BrokenLine``, never as an error. Blank lines are counted
in the numbering and otherwise ignored. Memory is bounded by the limit of a line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["BrokenLine", "Line", "Part", "parts_of", "read_lines"]

HEAD_BYTES = 300
"""How much of a broken line is kept."""
_CHUNK_BYTES = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of a file that begin in ``start <= offset < end``; ``end`` None: all of them."""

    file: int
    path: str
    start: int = 0
    end: int | None = None
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line feed; ``number`` counts from 1 within the part."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that cannot be had: why, and its first bytes."""

    number: int
    reason: str
    detail: str
    head: bytes


def parts_of(file: int, path: Path, part_bytes: int) -> list[Part]:
    """The parts of a file, in order; at least one."""
    with path.open("rb") as source:
        if source.read(2) == _GZIP_MAGIC:
            return [Part(file, str(path), compressed=True)]
    size = path.stat().st_size
    starts = range(0, max(size, 1), part_bytes)
    return [Part(file, str(path), start, min(start + part_bytes, size)) for start in starts]


def read_lines(part: Part, limit_bytes: int) -> Iterator[Line | BrokenLine]:
    """The part's lines in order. Raises ``OSError`` when the file cannot be read."""
    with Path(part.path).open("rb") as raw:
        if part.compressed:
            yield from _split(_chunks(gzip.GzipFile(fileobj=raw)), limit_bytes, None)
        else:
            begin = _seek_first_line(raw, part.start)
            length = None if part.end is None else part.end - begin
            if length is None or length > 0:
                yield from _split(_chunks(raw), limit_bytes, length)


def _seek_first_line(raw: IO[bytes], start: int) -> int:
    """Offset of the first line that begins at or after ``start``; the file stands there."""
    if start == 0:
        return 0
    raw.seek(start - 1)
    while chunk := raw.readline(_CHUNK_BYTES):
        if chunk.endswith(b"\n"):
            break
    return raw.tell()


def _chunks(source: IO[bytes] | gzip.GzipFile) -> Iterator[bytes | Exception]:
    """The content in chunks; the last item is the error that ended it, if one did."""
    while True:
        try:
            chunk = source.read1(_CHUNK_BYTES) if isinstance(source, gzip.GzipFile) else source.read(_CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield error
            return
        if not chunk:
            return
        yield chunk


def _split(chunks: Iterator[bytes | Exception], limit: int, length: int | None) -> Iterator[Line | BrokenLine]:
    """Cut chunks into lines; only lines that begin within the first ``length`` bytes."""
    cutter = _Cutter(limit, length)
    for chunk in chunks:
        if isinstance(chunk, Exception):
            yield cutter.broken_off(chunk)
            return
        yield from cutter.feed(chunk)
        if cutter.finished:
            return
    yield from cutter.last()


class _Cutter:
    """Collects bytes until a line is whole; of a line beyond the limit only the head is kept."""

    def __init__(self, limit: int, length: int | None) -> None:
        self._limit = limit
        self._length = length
        self._number = 1
        self._offset = 0  # where the line that is being collected begins
        self._collected: list[bytes] = []
        self._size = 0

    @property
    def finished(self) -> bool:
        """Whether the next line begins outside the part."""
        return self._length is not None and self._offset >= self._length

    def feed(self, chunk: bytes) -> Iterator[Line | BrokenLine]:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._add(piece)
            yield from self._line(len(b"\n"))
            if self.finished:
                return
        self._add(rest)

    def _add(self, piece: bytes) -> None:
        if piece:
            kept = self._limit + 1 - self._size
            if kept > 0:
                self._collected.append(piece[:kept])
            self._size += len(piece)

    def _line(self, separator: int) -> Iterator[Line | BrokenLine]:
        content = b"".join(self._collected)
        if self._size > self._limit:
            detail = f"{self._size} bytes, the limit is {self._limit}"
            yield BrokenLine(self._number, "line-too-long", detail, content[:HEAD_BYTES])
        elif not content.isspace() and content:
            yield Line(self._number, content)
        self._offset += self._size + separator
        self._number += 1
        self._collected, self._size = [], 0

    def last(self) -> Iterator[Line | BrokenLine]:
        """The line that the file ends with when it has no line feed."""
        if self._size:
            yield from self._line(0)

    def broken_off(self, error: Exception) -> BrokenLine:
        """What stands for the rest of an archive that cannot be read on."""
        reason = "truncated-gzip" if isinstance(error, EOFError) else "corrupt-gzip"
        return BrokenLine(self._number, reason, str(error), b"".join(self._collected)[:HEAD_BYTES])
