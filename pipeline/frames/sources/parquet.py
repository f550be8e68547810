"""Reads events from Parquet files: checks a file's columns, and reads its rows. Needs no Django.

The column ``json`` holds an event's exact bytes, or text. Columns with the names in
``pipeline.frames.sources.parts.GIVEN_COLUMNS`` are read too, if they exist. Other columns are ignored. A part is a range of row
groups. If a row group cannot be decoded, its remaining rows become one broken line, and the next row group is read.
Memory holds one batch of rows, and one buffer and one page for each column.

A few hundred bytes can expand to gigabytes: if many rows have the same value, the file stores the value once, and a few
bits for each row. So the headers of pages are checked before pages are unpacked (``_rows_at_once``). The size of the
rows is compared with the size of the file (``pipeline.frames.sources.expansion``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipeline.errors import UnusableSource
from pipeline.frames.sources import expansion
from pipeline.frames.sources.parquet_pages import BadPage, Page, pages
from pipeline.frames.sources.parts import GIVEN_COLUMNS, HEAD_BYTES, BrokenLine, Form, Line, Part

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["MAGIC", "announcing_rows", "check_columns", "check_file", "parts_of", "read_rows"]

MAGIC = b"PAR1"
_JSON = "json"
_ROWS_PER_BATCH = 1_000
_BUFFER_BYTES = 1024 * 1024
_ROWS_PER_PART = 50_000
_BATCH_BYTES = 32 * 1024 * 1024
#: The largest page. It has room for 1,500 events of maximum size. Some programs write 1,000 events at a time.
_PAGE_BYTES = 100 * 1024 * 1024
#: Memory for the offset and the length of a value while its page is read.
_BYTES_PER_VALUE = 16
_LARGEST_TEXT = 64 * 1024
_MOST_ROWS = 2**31
_DELTA_BYTE_ARRAY = 7


def check_file(path: Path) -> None:
    """Raises ``UnusableSource`` if the file's footer is no valid Parquet footer, or if a needed column is missing."""
    with _inspected(path):
        pass


def parts_of(file: int, path: Path) -> list[Part]:
    """Returns the parts of a file, at least one. A part has at most 50,000 rows, or is a single larger row group.

    Raises ``UnusableSource`` if the file is unusable or claims too many rows.
    """
    with _inspected(path) as source:
        groups = [source.metadata.row_group(n) for n in range(source.metadata.num_row_groups)]
        sizes = [group.num_rows for group in groups]
        columns = [group.column(n) for group in groups for n in _columns_to_read(source).values()]
        _check_sizes(columns, path, path.stat().st_size - source.metadata.serialized_size)
    if sum(sizes) > _MOST_ROWS:
        raise UnusableSource(
            f"{path} claims to have {sum(sizes):,} rows; at most {_MOST_ROWS:,} are read of a file. Split it."
        )
    found = list(_groups_of_parts(sizes))
    return [
        Part(file, str(path), first, last, Form.PARQUET, str(path), rows, parts=len(found))
        for first, last, rows in found
    ]


def _check_sizes(columns: Iterable[pq.ColumnChunkMetaData], path: Path, size: int) -> None:
    """Raises ``UnusableSource`` if the columns to read, of all row groups, claim to be larger than the file.

    ``size`` is the number of bytes before the file's footer. If they claim more bytes, several row groups use the same
    pages. A footer of some megabytes can name the same pages 100,000 times.
    """
    sizes = [column.total_compressed_size for column in columns]
    if min(sizes, default=0) < 0 or sum(sizes) > size:
        raise UnusableSource(
            f"{path}: its row groups claim {sum(sizes):,} bytes, and the file has {size:,}. Write it anew."
        )


@contextmanager
def _inspected(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa  # noqa: PLC0415 - only where such files are read

    try:
        with _open(path) as source:
            check_columns(source.schema_arrow, str(path))
            yield source
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UnusableSource(f"{path} cannot be read as Parquet: {_first_line(error)} Is it complete?") from error


def check_columns(schema: pa.Schema, name: str) -> None:
    """Raises ``UnusableSource`` if a file with the columns of ``schema`` cannot be read.

    The reason is one of these: the column ``json`` is missing, a column has a wrong type, or two columns have the same
    name.
    """
    if _JSON not in schema.names:
        raise UnusableSource(
            f"{name} has no column {_JSON!r} with the events; its columns are {', '.join(schema.names)[:300]}. "
            f"Read are {_JSON} and, if they are there, {', '.join(GIVEN_COLUMNS)}."
        )
    for column, (is_allowed, allowed) in _kinds().items():
        places = schema.get_all_field_indices(column)
        if len(places) > 1:
            raise UnusableSource(f"{name} has several columns {column!r}. Leave one.")
        field = schema.field(places[0]) if places else None
        if field is not None and not is_allowed(_plain(field.type)):
            raise UnusableSource(
                f"{name}: column {field.name!r} is of type {field.type} and must be {allowed}. "
                "Cast it, or leave the column out."
            )


def _kinds() -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Returns the allowed types of each column: column name -> (predicate, text).

    The predicate returns true for an allowed type of the column. The text names the allowed types.
    """
    from pyarrow import types  # noqa: PLC0415

    def is_text(kind: Any) -> bool:
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    text = (is_text, "a string")
    boolean = (lambda kind: types.is_boolean(kind) or types.is_null(kind), "a boolean")
    return {
        _JSON: (lambda kind: is_bytes(kind) or (is_text(kind) and not types.is_null(kind)), "binary or a string"),
        **dict.fromkeys(("event_id", "room_version", "rejected_reason"), text),
        **dict.fromkeys(("outlier", "soft_failed"), boolean),
        "stream_ordering": (lambda kind: types.is_integer(kind) or types.is_null(kind), "an integer"),
    }


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the value type of a dictionary type. Returns any other type unchanged."""
    from pyarrow import types  # noqa: PLC0415

    return kind.value_type if types.is_dictionary(kind) else kind


def _groups_of_parts(sizes: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yields (first row group, last row group + 1, number of rows) of each part.

    ``sizes`` holds the number of rows of each row group.
    """
    first, rows = 0, 0
    for number, size in enumerate(sizes):
        if rows and rows + size > _ROWS_PER_PART:
            yield first, number, rows
            first, rows = number, 0
        rows += size
    yield first, len(sizes), rows


def read_rows(part: Part) -> Iterator[Line | BrokenLine]:
    """Yields the rows of the part's row groups, in order. Raises ``OSError`` if the file cannot be read."""
    with _opened(part.path, part.parts) as source:
        number = 0
        for group in _groups(part):
            yield from source.rows_or_why(group, number)
            number += source.metadata.row_group(group).num_rows


def announcing_rows(part: Part) -> Iterator[Line | BrokenLine]:
    """Yields all rows of each row group that may have a row without a room version. Skips the other row groups."""
    with _opened(part.path, part.parts) as source:
        for group in _groups(part):
            if not source.has_all_versions(group):
                yield from source.rows_or_why(group, 0)


def _groups(part: Part) -> range:
    return range(part.start, part.start if part.end is None else part.end)


def _columns_to_read(file: pq.ParquetFile) -> dict[str, int]:
    """Returns the columns to read, as name -> number in a row group. Others cost nothing, however many there are."""
    wanted, schema = {_JSON, *GIVEN_COLUMNS}, file.schema
    found = ((name, number) for number, name in enumerate(schema.names) if name in wanted)
    # A field of a structure has such a name, too, and another path.
    return {name: number for name, number in found if schema.column(number).path == name}


@contextmanager
def _opened(path: str, parts: int) -> Iterator[_Source]:
    with Path(path).open("rb") as raw, _open(Path(path)) as file:
        yield _Source(raw, file, parts)


class _TooLarge(Exception):
    """An error for a page that would take too much memory if it was unpacked."""


class _Source:
    """An open Parquet file, which is read as rows, and as raw bytes for the headers of its pages."""

    def __init__(self, raw: IO[bytes], file: pq.ParquetFile, parts: int) -> None:
        self._raw, self._file = raw, file
        self.metadata = file.metadata
        self._numbers = _columns_to_read(file)
        self._names = [name for name in (_JSON, *GIVEN_COLUMNS) if name in self._numbers]
        self._expansion = expansion.Expansion(parts)
        self._packed = 0

    def has_all_versions(self, group: int) -> bool:
        """Returns true if each row of the row group has a room version, as far as the statistics say."""
        if (number := self._numbers.get("room_version")) is None:
            return False
        found = self.metadata.row_group(group).column(number).statistics
        return bool(found is not None and found.has_null_count and found.null_count == 0)

    def rows_or_why(self, group: int, before: int) -> Iterator[Line | BrokenLine]:
        """Yields the rows of the row group with number ``group``. The rows are numbered from ``before`` + 1.

        If decoding fails, one ``BrokenLine`` takes the place of the remaining rows.
        """
        import pyarrow as pa  # noqa: PLC0415

        number, reason = before, "corrupt-parquet"
        try:
            for number, (json, given) in enumerate(self._rows(group), before + 1):
                yield _line(number, json, given)
            return
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if isinstance(error, pa.ArrowNotImplementedError):  # such as the codec LZO
                reason = "unsupported-parquet"
            why = f"{_first_line(error)} The rest of the row group is left out."
        except (BadPage, _TooLarge) as error:
            if isinstance(error, _TooLarge):
                reason = "page-too-large"
            why = f"{error}. The row group is left out."
        except expansion.ExpandsTooMuch as error:
            reason, why = expansion.REASON, str(error)
        yield BrokenLine(number + 1, reason, f"row group {group}: {why}", b"")

    def _rows(self, group: int) -> Iterator[tuple[bytes | None, dict[str, Any]]]:
        import pyarrow as pa  # noqa: PLC0415

        at_once = self._rows_at_once(group)
        for batch in self._file.iter_batches(at_once, row_groups=[group], columns=self._names):
            columns = {name: batch.column(name) for name in self._names}
            # Plain values, in place of references to a dictionary.
            columns = {name: column.cast(_plain(column.type)) for name, column in columns.items()}
            columns[_JSON] = columns[_JSON].cast(pa.large_binary())  # invalid UTF-8, too: the event parser reports it
            self._expansion.give(sum(column.nbytes for column in columns.values()), batch.num_rows, self._packed)
            events = columns.pop(_JSON).to_pylist()
            given = [column.to_pylist() for column in columns.values()]
            for json, *values in zip(events, *given, strict=True):
                yield json, dict(zip(columns, values, strict=True))

    def _rows_at_once(self, group: int) -> int:
        """Returns how many rows to read at once so that memory is bounded. Reads the headers of the row group's pages.

        Raises ``_TooLarge`` and ``BadPage``.
        """
        of_row = 0
        about = self.metadata.row_group(group)
        for column in map(about.column, self._numbers.values()):
            self._packed += column.total_compressed_size
            of_row += max((_of_row(page, column.path_in_schema) for page in self._pages(column)), default=0)
        return min(max(_BATCH_BYTES // max(of_row, 1), 1), _ROWS_PER_BATCH)

    def _pages(self, column: pq.ColumnChunkMetaData) -> Iterator[Page]:
        begins = [column.data_page_offset, *([column.dictionary_page_offset] if column.has_dictionary_page else [])]
        return pages(self._raw, min(place for place in begins if place), column.total_compressed_size)


def _of_row(page: Page, name: str) -> int:
    """Returns the largest number of bytes that one row of the page may take when unpacked. Raises ``_TooLarge``."""
    if page.size > _PAGE_BYTES or page.values * _BYTES_PER_VALUE > _PAGE_BYTES:
        raise _TooLarge(
            f"a page of column {name!r} unpacks to {page.size:,} bytes and {page.values:,} values; limits are {_PAGE_BYTES:,} "
            f"and {_PAGE_BYTES // _BYTES_PER_VALUE:,}. Write the file with smaller pages"
        )
    # Every row may have a value as large as the page, if values come from a dictionary or repeat a prefix of the
    # previous value.
    whole = page.is_dictionary or page.encoding == _DELTA_BYTE_ARRAY
    return page.size if whole else page.size // max(page.values, 1)


def _line(number: int, json: bytes | None, given: dict[str, Any]) -> Line | BrokenLine:
    if json is None:
        return BrokenLine(number, "no-json", "null", b"")
    for name, value in given.items():
        if isinstance(value, str) and len(value) > _LARGEST_TEXT:
            detail = f"column {name!r} has {len(value):,} characters, the limit is {_LARGEST_TEXT:,}"
            return BrokenLine(number, "line-too-long", detail, json[:HEAD_BYTES])
    return Line(number, json, given)


def _open(path: Path) -> pq.ParquetFile:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only where such files are read

    return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0].rstrip(".")
    return f"{text}." if text else f"{type(error).__name__}."
