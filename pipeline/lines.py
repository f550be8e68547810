"""Lines of input files, as bytes, whatever is in them (pure but for reading the files).

A plain file is read in byte ranges, a compressed one as a whole. Lines that are too long and archives that break off come out as
``BrokenLine``, never as an error. Blank lines are counted in the numbering and otherwise ignored. Memory is bounded by the limit
of a line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline.parts import HEAD_BYTES, BrokenLine, Form, Line, Part

__all__ = ["compression_of", "parts_of", "read_lines"]

_CHUNK_BYTES = 1024 * 1024
_MAGIC = {b"\x1f\x8b": Form.GZIP, b"\x28\xb5\x2f\xfd": Form.ZSTD}
#: A frame that holds no data and is to be skipped may begin a Zstandard file, too.
_SKIPPABLE_ZSTD = (b"\x2a\x4d\x18", range(0x50, 0x60))
#: Zstandard's reader gives nothing of a piece in which it fails, so what breaks is read again in smaller ones.
_ZSTD_PIECES = (64 * 1024, 1024, 1)
Broken = tuple[str, Exception]


def compression_of(head: bytes) -> Form:
    """Whether a file that begins so is compressed, and how."""
    if head[1:4] == _SKIPPABLE_ZSTD[0] and head[0] in _SKIPPABLE_ZSTD[1]:
        return Form.ZSTD
    return next((form for magic, form in _MAGIC.items() if head.startswith(magic)), Form.LINES)


def parts_of(file: int, path: Path, part_bytes: int) -> list[Part]:
    """The parts of a file, in order; at least one."""
    with path.open("rb") as source:
        form = compression_of(source.read(4))
    if form is not Form.LINES:
        return [Part(file, str(path), form=form, name=str(path))]
    size = path.stat().st_size
    starts = range(0, max(size, 1), part_bytes)
    return [Part(file, str(path), start, min(start + part_bytes, size), name=str(path)) for start in starts]


def read_lines(part: Part, limit_bytes: int) -> Iterator[Line | BrokenLine]:
    """The part's lines in order. Raises ``OSError`` when the file cannot be read."""
    if part.form is Form.ZSTD:
        yield from _split(_zstd_chunks(part.path), limit_bytes, None)
        return
    with Path(part.path).open("rb") as raw:
        if part.form is Form.GZIP:
            yield from _split(_gzip_chunks(gzip.GzipFile(fileobj=raw)), limit_bytes, None)
        else:
            begin = _seek_first_line(raw, part.start)
            length = None if part.end is None else part.end - begin
            if length is None or length > 0:
                yield from _split(_chunks(raw.read), limit_bytes, length)


def _seek_first_line(raw: IO[bytes], start: int) -> int:
    """Offset of the first line that begins at or after ``start``; the file stands there."""
    if start == 0:
        return 0
    raw.seek(start - 1)
    while chunk := raw.readline(_CHUNK_BYTES):
        if chunk.endswith(b"\n"):
            break
    return raw.tell()


def _chunks(read: Callable[[int], bytes], size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    while chunk := read(size):
        yield chunk


def _gzip_chunks(source: gzip.GzipFile) -> Iterator[bytes | Broken]:
    """The content in chunks; the last item is why it ended, if that is an error."""
    try:
        yield from _chunks(source.read1)
    except EOFError as error:
        yield "truncated-gzip", error
    except (gzip.BadGzipFile, zlib.error) as error:
        yield "corrupt-gzip", error


def _zstd_chunks(path: str) -> Iterator[bytes | Broken]:
    """The same of Zstandard."""
    given = 0
    broken: Exception | None = None
    for piece in _ZSTD_PIECES:
        reached = 0
        try:
            for chunk in _chunks(_zstd(path), piece) if not broken else _from(_zstd(path), given, piece):
                reached += len(chunk)
                yield chunk
        except OSError as error:
            if error.errno is not None:  # of the file system
                raise
            broken = error
            given += reached
        else:
            return
    if broken is not None:
        yield "truncated-zstd" if "runcated" in str(broken) else "corrupt-zstd", broken


def _zstd(path: str) -> Callable[[int], bytes]:
    import pyarrow  # noqa: PLC0415 - only where such files are read

    read: Callable[[int], bytes] = pyarrow.CompressedInputStream(pyarrow.OSFile(path), "zstd").read
    return read


def _from(read: Callable[[int], bytes], offset: int, piece: int) -> Iterator[bytes]:
    """What comes behind the first ``offset`` bytes, which were read in whole pieces before."""
    while offset > 0 and (skipped := read(min(offset, _ZSTD_PIECES[0]))):
        offset -= len(skipped)
    yield from _chunks(read, piece)


def _split(chunks: Iterator[Any], limit: int, length: int | None) -> Iterator[Line | BrokenLine]:
    """Cut chunks into lines; only lines that begin within the first ``length`` bytes."""
    cutter = _Cutter(limit, length)
    for chunk in chunks:
        if isinstance(chunk, tuple):
            yield cutter.broken_off(*chunk)
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

    def broken_off(self, reason: str, error: Exception) -> BrokenLine:
        """What stands for the rest of an archive that cannot be read on."""
        return BrokenLine(self._number, reason, str(error), b"".join(self._collected)[:HEAD_BYTES])
