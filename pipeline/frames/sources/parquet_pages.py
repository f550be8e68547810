"""Reads the headers of a column's pages in a Parquet file. Unpacks no page. Pure but for reading the file.

The unpacked size of a page is in its header. The Parquet reader allocates as much memory as the header says. The file's
footer also has sizes, but they may differ, so they are not used. Headers are Thrift structures in the compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

__all__ = ["BadPage", "Page", "pages"]

_FIRST_READ = 4 * 1024
_LARGEST_HEADER = 1024 * 1024
_DEEPEST = 8
_BOOLEANS = {1: True, 2: False}
_STOP = 0
_LONG_LIST = 15
#: Fields of a page header, one for each kind of page. In each of them, field 1 is the number of values. The number of
#: the encoding is in different fields.
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_ENCODING_FIELD = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}


class BadPage(Exception):
    """An error for bytes that are not a valid page header."""


class _TooShort(Exception):
    """An error for a header that continues after the bytes that were read."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its unpacked size in bytes, its number of values, and the number of the encoding of its values."""

    size: int
    values: int
    encoding: int
    is_dictionary: bool


def pages(file: IO[bytes], start: int, length: int) -> Iterator[Page]:
    """Yields the pages of the column chunk of ``length`` bytes at offset ``start``. Raises ``BadPage`` and ``OSError``."""
    end = start + length
    while start < end:
        header, size = _header(file, start, end)
        packed, unpacked = header.get(3), header.get(2)
        if not isinstance(packed, int) or not isinstance(unpacked, int) or packed < 0 or unpacked < 0:
            raise BadPage(f"the page at byte {start} has no size")
        for kind, field in _ENCODING_FIELD.items():
            if isinstance(about := header.get(kind), dict):
                yield Page(unpacked, _count(about.get(1)), _count(about.get(field)), kind == _DICTIONARY)
                break
        else:
            yield Page(unpacked, 0, 0, is_dictionary=False)
        start += size + packed


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _header(file: IO[bytes], start: int, end: int) -> tuple[dict[int, Any], int]:
    """Returns (page header at the offset ``start``, length of this header in bytes).

    The header is a mapping: field number -> value.
    """
    wanted = _FIRST_READ
    while True:
        file.seek(start)
        content = file.read(min(wanted, end - start))
        reader = _Compact(content)
        try:
            return reader.struct(0), reader.place
        except _TooShort:
            if len(content) < wanted or wanted >= _LARGEST_HEADER:
                raise BadPage(f"the header of the page at byte {start} does not end") from None
            wanted *= 8


class _Compact:
    """Decoder for Thrift's compact protocol."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.place = 0
        self._kinds: dict[int, Callable[[int], Any]] = {
            **dict.fromkeys((1, 2, 3), lambda _: self._byte()),  # in a list a boolean takes a byte of its own
            **dict.fromkeys((4, 5, 6), lambda _: self._integer()),
            7: lambda _: self._bytes(8),
            8: lambda _: self._bytes(self._unsigned()),
            **dict.fromkeys((9, 10), self._list),
            11: self._map,
            12: self.struct,
        }

    def struct(self, depth: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != _STOP:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._integer()
            found[number] = _BOOLEANS[kind] if kind in _BOOLEANS else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind not in self._kinds or depth > _DEEPEST:
            raise BadPage(f"a value of kind {kind} where none can be")
        return self._kinds[kind](depth + 1)

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < _LONG_LIST else self._unsigned()
        return [self._value(head & 15, depth) for _ in range(self._checked(count))]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        count = self._checked(self._unsigned())
        kinds = self._byte() if count else 0
        return [(self._value(kinds >> 4, depth), self._value(kinds & 15, depth)) for _ in range(count)]

    def _checked(self, count: int) -> int:
        """Returns ``count``, the number of elements of a list or map.

        Raises ``_TooShort`` if ``count`` exceeds the number of bytes that are not yet decoded. Each element takes at
        least one byte.
        """
        if count > len(self._content) - self.place:
            raise _TooShort
        return count

    def _byte(self) -> int:
        if self.place >= len(self._content):
            raise _TooShort
        self.place += 1
        return self._content[self.place - 1]

    def _bytes(self, count: int) -> bytes:
        found = self._content[self.place : self.place + count]
        if len(found) < count:
            raise _TooShort
        self.place += count
        return found

    def _unsigned(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise BadPage("a number that is too long")

    def _integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
