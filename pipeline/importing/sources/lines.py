"""Lines of input files, as bytes, whatever is in them (pure but for reading the files).

A plain file is read in byte ranges, a compressed one as a whole. Lines that are too long and archives that break off come out as
``BrokenLine``, never as an error. Blank lines are counted in the numbering and otherwise ignored. Memory is bounded by the limit
of a line.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline.importing.sources.expansion import REASON, ExpandsTooMuch, Expansion
from pipeline.importing.sources.parts import HEAD_BYTES, BrokenLine, Form, Line, Part, PassedLines

__all__ = ["announcing_lines", "compression_of", "parts_of", "read_lines"]

_CHUNK_BYTES = 1024 * 1024
#: Behind a part only the rest of its last line is wanted.
_BEHIND_BYTES = 64 * 1024
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
    return _cut(part, lambda length: _Cutter(limit_bytes, length))


def announcing_lines(part: Part, limit_bytes: int, word: bytes) -> Iterator[Line | BrokenLine | PassedLines]:
    """The part's lines that hold ``word``, perhaps others too, and last how many lines there are. Raises ``OSError``."""
    return _cut(part, lambda length: _Finder(limit_bytes, length, word))


def _cut(part: Part, cutter: Callable[[int | None], _Cutter]) -> Iterator[Any]:
    if part.form is Form.ZSTD:
        yield from cutter(None).cut(_zstd_chunks(part.path))
        return
    with Path(part.path).open("rb") as raw:
        if part.form is Form.GZIP:
            yield from cutter(None).cut(_gzip_chunks(raw))
            return
        begin = _seek_first_line(raw, part.start)
        length = None if part.end is None else max(part.end - begin, 0)
        yield from cutter(length).cut(_chunks_within(raw.read, length))


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


def _chunks_within(read: Callable[[int], bytes], length: int | None) -> Iterator[bytes]:
    """The first ``length`` bytes and, in chunks of their own, what comes behind them."""
    left = length
    while left is not None and left > 0 and (chunk := read(min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk
    yield from _chunks(read, _CHUNK_BYTES if length is None else _BEHIND_BYTES)


def _gzip_chunks(raw: IO[bytes]) -> Iterator[bytes | Broken]:
    """The content in chunks; the last item is why it ended, if that is an error."""
    given = Expansion()
    try:
        for chunk in _chunks(gzip.GzipFile(fileobj=raw).read1):
            given.give(len(chunk), chunk.count(b"\n"), raw.tell())
            yield chunk
    except ExpandsTooMuch as error:
        yield REASON, error
    except EOFError as error:
        yield "truncated-gzip", error
    except (gzip.BadGzipFile, zlib.error) as error:
        yield "corrupt-gzip", error


def _zstd_chunks(path: str) -> Iterator[bytes | Broken]:
    """The same of Zstandard."""
    given, likely = 0, Expansion()
    broken: Exception | None = None
    for piece in _ZSTD_PIECES:
        reached = 0
        try:
            raw, read = _zstd(path)
            for chunk in _chunks(read, piece) if not broken else _from(read, given, piece):
                likely.give(len(chunk), chunk.count(b"\n"), raw.tell())
                reached += len(chunk)
                yield chunk
        except ExpandsTooMuch as error:
            yield REASON, error
            return
        except OSError as error:
            if error.errno is not None:  # of the file system
                raise
            broken = error
            given += reached
        else:
            return
    if broken is not None:
        yield "truncated-zstd" if "runcated" in str(broken) else "corrupt-zstd", broken


def _zstd(path: str) -> tuple[Any, Callable[[int], bytes]]:
    """The file, and how its content is read."""
    import pyarrow  # noqa: PLC0415 - only where such files are read

    raw = pyarrow.OSFile(path)
    return raw, pyarrow.CompressedInputStream(raw, "zstd").read


def _from(read: Callable[[int], bytes], offset: int, piece: int) -> Iterator[bytes]:
    """What comes behind the first ``offset`` bytes, which were read in whole pieces before."""
    while offset > 0 and (skipped := read(min(offset, _ZSTD_PIECES[0]))):
        offset -= len(skipped)
    yield from _chunks(read, piece)


class _Cutter:
    """Collects bytes until a line is whole; of a line beyond the limit only the head is kept.

    Lines are cut that begin within the first ``length`` bytes; no chunk reaches over that place.
    """

    def __init__(self, limit: int, length: int | None) -> None:
        self._limit = limit
        self._end = sys.maxsize if length is None else length
        self._number = 1
        self._offset = 0  # where the line that is being collected begins
        self._collected: list[bytes] = []
        self._size = 0

    def cut(self, chunks: Iterator[Any]) -> Iterator[Line | BrokenLine | PassedLines]:
        """What the chunks hold, until a line would begin outside the part."""
        while self._offset < self._end and (chunk := next(chunks, None)) is not None:
            if isinstance(chunk, tuple):
                yield self._broken_off(*chunk)
                return
            yield from self._feed(chunk)
        if self._size and (found := self._line(b"", 0)) is not None:  # the file ends without a line feed
            yield found

    def _feed(self, chunk: bytes) -> Iterator[Line | BrokenLine]:
        first, last = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
        if (
            chunk[first : first + 1].isspace()
            and self._offset + self._size + last <= self._end
            and chunk[first:last].isspace()
        ):
            yield from self._lines(chunk[:first])
            self._number += chunk.count(b"\n", first, last)  # of blank lines a gigabyte packs well
            self._offset += last - first
            self._collect(chunk[last:])
        else:
            yield from self._lines(chunk)

    def _lines(self, chunk: bytes) -> Iterator[Line | BrokenLine]:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            if (found := self._line(piece, len(b"\n"))) is not None:
                yield found
            if self._offset >= self._end:
                return
        self._collect(rest)

    def _collect(self, piece: bytes) -> None:
        if piece:
            kept = self._limit + 1 - self._size
            if kept > 0:
                self._collected.append(piece[:kept])
            self._size += len(piece)

    def _line(self, piece: bytes, separator: int) -> Line | BrokenLine | None:
        """The line that ends with this piece, null for a blank one."""
        content, size = piece, len(piece)
        if self._size:
            self._collect(piece)
            content, size = b"".join(self._collected), self._size
            self._collected, self._size = [], 0
        number = self._number
        self._number += 1
        self._offset += size + separator
        if size > self._limit:
            detail = f"{size} bytes, the limit is {self._limit}"
            return BrokenLine(number, "line-too-long", detail, content[: min(self._limit + 1, HEAD_BYTES)])
        return None if not content or content.isspace() else Line(number, content)

    def _broken_off(self, reason: str, error: Exception) -> BrokenLine:
        """What stands for the rest of an archive that cannot be read on."""
        number = self._number
        self._number += 1
        return BrokenLine(number, reason, str(error), b"".join(self._collected)[:HEAD_BYTES])


class _Finder(_Cutter):
    """Passes over lines without a word in them, as many at a time as a chunk holds whole; the others come out."""

    def __init__(self, limit: int, length: int | None, word: bytes) -> None:
        super().__init__(limit, length)
        self._word = word

    def cut(self, chunks: Iterator[Any]) -> Iterator[Line | BrokenLine | PassedLines]:
        yield from super().cut(chunks)
        yield PassedLines(self._number - 1)

    def _feed(self, chunk: bytes) -> Iterator[Line | BrokenLine]:
        first, last = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
        yield from super()._feed(chunk[:first])  # with what was collected before
        if self._offset >= self._end:
            return
        yield from self._whole(chunk[first:last])
        self._collect(chunk[last:])

    def _whole(self, lines: bytes) -> Iterator[Line | BrokenLine]:
        begin = 0
        while (place := lines.find(self._word, begin)) >= 0:
            start, end = lines.rfind(b"\n", 0, place) + 1, lines.find(b"\n", place) + 1
            self._pass(lines, begin, start)
            yield from super()._feed(lines[start:end])
            begin = end
        self._pass(lines, begin, len(lines))

    def _pass(self, lines: bytes, begin: int, end: int) -> None:
        self._number += lines.count(b"\n", begin, end)
        self._offset += end - begin
