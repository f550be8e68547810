"""Reads the lines of input files as bytes, even if they are no text (pure but for reading the files).

A plain file is read in byte ranges, a compressed file as a whole. A line that is too long becomes a ``BrokenLine``. If
a compressed file cannot be read to its end, the rest of the file becomes one ``BrokenLine``. In both cases no exception
is raised. Blank lines are counted in the numbers of lines, and otherwise ignored. Memory is bounded by the largest
allowed size of a line. Before that, ``check_text`` refuses a file whose content is no lines at all, such as a JSON array.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from events.format.foreign_forms import BYTE_ORDER_MARK, foreign_form
from pipeline.errors import UnusableSource
from pipeline.frames.sources.expansion import FREE_BYTES, MOST_FOR_ONE, REASON, ExpandsTooMuch, Expansion
from pipeline.frames.sources.parts import HEAD_BYTES, BrokenLine, Form, Line, Part, PassedLines

__all__ = ["announcing_lines", "check_text", "compression_of", "parts_of", "read_lines"]

_CHUNK_BYTES = 1024 * 1024
#: Chunk size after the end of a part, where only the rest of its last line is needed.
_BEHIND_BYTES = 64 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAGIC = {b"\x1f\x8b": Form.GZIP, _ZSTD_MAGIC: Form.ZSTD}
#: A Zstandard file may also begin with a skippable frame, which holds no data.
_SKIPPABLE_ZSTD = (b"\x2a\x4d\x18", range(0x50, 0x60))
#: Sizes of reads. If a read fails, Zstandard's reader returns none of its bytes. So after an error the file is read again in
#: smaller pieces, to get all content before the error.
_ZSTD_PIECES = (64 * 1024, 1024, 1)
_LONGEST_ZSTD_HEADER = 18
#: The binary logarithm of the largest window that Zstandard writes.
_LARGEST_ZSTD_WINDOW = 31
#: First bytes of files that are no lines, whatever their names say.
_OTHER_FORMS = {
    b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "ZIP", b"\x04\x22\x4d\x18": "LZ4", b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"\xff\x06\0\0sNaPpY": "Snappy", b"\x1f\x9d": "compress", b"ARROW1": "Arrow", b"Obj\x01": "Avro", b"ORC": "ORC",
    b"PARE": "encrypted Parquet", b"PAR1": "Parquet", b"SQLite format 3\0": "SQLite",
}  # fmt: skip
_TAR, _TAR_AT = b"ustar", 257
#: Bytes of the content that show what it is.
_SHOWN_BYTES = 64 * 1024
#: Zstandard's reader needs memory for the window of a frame, and takes at most so much.
_WINDOW_TOO_LARGE = (
    "a frame needs more than 128 MB of memory to be read (its window, or its whole content): zstd -d --long=31 FILE, and "
    "import what was in it"
)
#: What Zstandard says of a file that is whole, and that the reader cannot read: (its words, reason, what to do).
_WHOLE_ZSTD = (
    ("too much memory", "window-too-large", _WINDOW_TOO_LARGE),
    (
        "ictionary",
        "unsupported-zstd",
        "a frame needs a dictionary: zstd -d -D DICTIONARY FILE, and import what was in it",
    ),
    ("nsupported", "unsupported-zstd", "a frame is of a later form than this reader knows: unpack it, and import that"),
)
Broken = tuple[str, Exception | str]


def compression_of(head: bytes) -> Form:
    """Returns the format of a file whose first bytes are ``head``: gzip, Zstandard, or plain lines."""
    if head[1:4] == _SKIPPABLE_ZSTD[0] and head[0] in _SKIPPABLE_ZSTD[1]:
        return Form.ZSTD
    return next((form for magic, form in _MAGIC.items() if head.startswith(magic)), Form.LINES)


def check_text(path: Path, form: Form) -> None:
    """Raises ``UnusableSource`` if the content of a file, once unpacked, is no text with a line for each event.

    A file that cannot be unpacked is not refused here: its lines before the damage are read.
    """
    begin = b"".join(_first_chunks(path, form))
    if form is not Form.LINES and (inner := compression_of(begin)) is not Form.LINES:
        raise UnusableSource(f"{path} is packed twice, with {inner} inside. Unpack it once.")
    known = next((name for magic, name in _OTHER_FORMS.items() if begin.startswith(magic)), None)
    if begin[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR and b"\0" in begin[:_TAR_AT]:
        known = "tar"
    if known is not None:
        raise UnusableSource(
            f"{path} {'is' if form is Form.LINES else 'holds'} a file of the form {known}. Read are JSON Lines, which may be "
            "packed with gzip or Zstandard, Parquet, and SQLite files of Synapse. Unpack it, or write it anew."
        )
    if (description := foreign_form(begin)) is not None:
        raise UnusableSource(f"{path} is {description}")


def _first_chunks(path: Path, form: Form) -> Iterator[bytes]:
    """Yields the first bytes of the file's content, as far as they can be read."""
    left = _SHOWN_BYTES
    with path.open("rb") as raw:
        packed = {Form.GZIP: _gzip_chunks, Form.ZSTD: lambda _: _zstd_chunks(str(path))}
        for chunk in packed[form](raw) if form in packed else _chunks(raw.read, left):
            if isinstance(chunk, tuple) or left <= 0:
                return
            yield chunk[:left]
            left -= len(chunk)


def parts_of(file: int, path: Path, part_bytes: int) -> list[Part]:
    """Returns the parts of a file in order, at least one. A compressed file is one part."""
    with path.open("rb") as source:
        form = compression_of(source.read(4))
    if form is not Form.LINES:
        return [Part(file, str(path), form=form, name=str(path))]
    size = path.stat().st_size
    starts = range(0, max(size, 1), part_bytes)
    return [Part(file, str(path), start, min(start + part_bytes, size), name=str(path)) for start in starts]


def read_lines(part: Part, limit_bytes: int) -> Iterator[Line | BrokenLine]:
    """Yields the part's lines in order. Raises ``OSError`` if the file cannot be read."""
    return _cut(part, lambda length: _Cutter(limit_bytes, length))


def announcing_lines(part: Part, limit_bytes: int, word: bytes) -> Iterator[Line | BrokenLine | PassedLines]:
    """Yields the part's lines that contain ``word``. May also yield other lines. Raises ``OSError``.

    The last item is a ``PassedLines`` with the number of lines in the part.
    """
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
    """Moves the file to the first line that begins at or after ``start``, and returns that line's offset."""
    if start == 0:
        return 0
    raw.seek(start - 1)  # if this byte is a line feed, a line begins exactly at ``start``
    while chunk := raw.readline(_CHUNK_BYTES):
        if chunk.endswith(b"\n"):
            break
    return raw.tell()


def _chunks(read: Callable[[int], bytes], size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    while chunk := read(size):
        yield chunk


def _chunks_within(read: Callable[[int], bytes], length: int | None) -> Iterator[bytes]:
    """Yields the first ``length`` bytes that ``read`` returns in chunks, then the rest in chunks.

    No chunk has bytes from both sides of the boundary at ``length``. If ``length`` is None, there is no boundary.
    """
    left = length  # None: the whole rest of the file
    while left is not None and left > 0 and (chunk := read(min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk
    yield from _chunks(read, _CHUNK_BYTES if length is None else _BEHIND_BYTES)


def _gzip_chunks(raw: IO[bytes]) -> Iterator[bytes | Broken]:
    """Yields the content in chunks. If reading ends with an error, the last item is (reason, error)."""
    expansion = Expansion()
    try:
        for chunk in _chunks(gzip.GzipFile(fileobj=raw).read1):
            expansion.give(len(chunk), chunk.count(b"\n"), raw.tell())
            yield chunk
    except ExpandsTooMuch as error:
        yield REASON, error
    except EOFError as error:
        yield "truncated-gzip", error
    except (gzip.BadGzipFile, zlib.error) as error:
        yield "corrupt-gzip", error


def _zstd_chunks(path: str) -> Iterator[bytes | Broken]:
    """Yields the content in chunks. If reading ends with an error, the last item is (reason, error)."""
    import pyarrow  # noqa: PLC0415 - only where such files are read

    given, expansion = 0, Expansion()
    broken: Exception | None = None
    for piece in _ZSTD_PIECES:
        reached = 0
        try:
            raw = pyarrow.OSFile(path)
            read = pyarrow.CompressedInputStream(raw, "zstd").read
            for chunk in _chunks(read, piece) if not broken else _from(read, given, piece):
                expansion.give(len(chunk), chunk.count(b"\n"), raw.tell())
                reached += len(chunk)
                yield chunk
        except ExpandsTooMuch as error:
            yield REASON, error
            return
        except OSError as error:
            if error.errno is not None:  # an error of the file system, not of the content
                raise
            broken = error
            given += reached  # the next pass skips what was yielded
        else:
            return
    if broken is not None:
        yield _why_zstd(path, broken)


def _why_zstd(path: str, error: Exception) -> Broken:
    for words, reason, what_to_do in _WHOLE_ZSTD:
        if words in str(error) and not _claims_nonsense(path):
            return reason, f"{error}: {what_to_do}"
    return "truncated-zstd" if "runcated" in str(error) else "corrupt-zstd", error


def _claims_nonsense(path: str) -> bool:
    """Returns true if the header of the first frame is damaged: no program writes such a window, or such a size.

    The header is described in RFC 8878, 3.1.1.1.
    """
    with Path(path).open("rb") as file:
        header = file.read(_LONGEST_ZSTD_HEADER)
        size = file.seek(0, os.SEEK_END)
    if not header.startswith(_ZSTD_MAGIC) or len(header) <= len(_ZSTD_MAGIC) + 1:  # a frame to be skipped comes first
        return False
    descriptor = header[4]
    if not descriptor & 0x20:
        return (header[5] >> 3) + 10 > _LARGEST_ZSTD_WINDOW
    at, length = 5 + (0, 1, 2, 4)[descriptor & 3], 1 << (descriptor >> 6)
    content = int.from_bytes(header[at : at + length], "little")
    return content > FREE_BYTES + MOST_FOR_ONE * size


def _from(read: Callable[[int], bytes], offset: int, piece: int) -> Iterator[bytes]:
    """Yields the content that ``read`` returns after the first ``offset`` bytes, which are skipped.

    An earlier pass has read the skipped bytes without an error, so to read them again does not fail.
    """
    while offset > 0 and (skipped := read(min(offset, _ZSTD_PIECES[0]))):
        offset -= len(skipped)
    yield from _chunks(read, piece)


class _Cutter:
    """A splitter of chunks into lines. If a line exceeds the limit, only its first bytes are kept.

    The splitter yields the lines that begin within the first ``length`` bytes. No chunk may have bytes from both sides
    of this boundary.
    """

    def __init__(self, limit: int, length: int | None) -> None:
        self._limit = limit
        self._end = sys.maxsize if length is None else length
        self._number = 1
        self._offset = 0  # begin of the line that is being collected
        self._collected: list[bytes] = []
        self._size = 0

    def cut(self, chunks: Iterator[Any]) -> Iterator[Line | BrokenLine | PassedLines]:
        """Yields the lines that begin within the first ``length`` bytes of the chunks.

        The last of these lines may end after the first ``length`` bytes.
        """
        while self._offset < self._end and (chunk := next(chunks, None)) is not None:
            if isinstance(chunk, tuple):
                # The rest of a compressed file cannot be read.
                reason, error = chunk
                yield BrokenLine(self._number, reason, str(error), b"".join(self._collected)[:HEAD_BYTES])
                self._number += 1
                return
            yield from self._feed(chunk)
        if self._size and (found := self._line(b"", 0)) is not None:  # the file ends without a line feed
            yield found

    def _feed(self, chunk: bytes) -> Iterator[Line | BrokenLine]:
        # A gigabyte of blank lines compresses to little. If all whole lines of the chunk are blank, count them at once.
        first, last = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
        if (
            chunk[first : first + 1].isspace()
            and self._offset + self._size + last <= self._end
            and chunk[first:last].isspace()
        ):
            yield from self._lines(chunk[:first])
            self._number += chunk.count(b"\n", first, last)
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
        """Returns the line whose last bytes are ``piece``, or None if the line is blank."""
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
        return None if not content or content.isspace() or content == BYTE_ORDER_MARK else Line(number, content)


class _Finder(_Cutter):
    """A finder of the lines that contain a word.

    A line that lies within one chunk is yielded only if it contains the word. A line that extends over several chunks
    is always yielded.
    """

    def __init__(self, limit: int, length: int | None, word: bytes) -> None:
        super().__init__(limit, length)
        self._word = word

    def cut(self, chunks: Iterator[Any]) -> Iterator[Line | BrokenLine | PassedLines]:
        yield from super().cut(chunks)
        yield PassedLines(self._number - 1)

    def _feed(self, chunk: bytes) -> Iterator[Line | BrokenLine]:
        first, last = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
        yield from super()._feed(chunk[:first])  # completes the line that was collected from earlier chunks
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
