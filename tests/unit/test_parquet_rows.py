"""Rows of Parquet files: which columns count, and what becomes of files that are not as they should be."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import parquet_rows
from pipeline.errors import UnusableSource
from pipeline.parquet_rows import announcing_rows, parts_of, read_rows
from pipeline.parts import BrokenLine, Line


@pytest.fixture
def file(tmp_path):
    def write(columns, rows_per_group=1000, **options):
        path = tmp_path / "in.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=rows_per_group, **options)
        return path

    return write


def rows(path):
    return [list(read_rows(part)) for part in parts_of(0, path)]


def test_the_json_comes_as_its_bytes_and_known_columns_as_what_is_told(file):
    path = file({"json": [b"{\x00}", b"[]"], "event_id": ["$a", None], "outlier": [True, False], "other": [1, 2]})
    assert rows(path) == [
        [Line(1, b"{\x00}", {"event_id": "$a", "outlier": True}), Line(2, b"[]", {"event_id": None, "outlier": False})]
    ]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_of_any_kind_is_taken(file, kind):
    path = file({"json": pa.array(['{"a": "ä"}']).cast(kind)})
    assert [line.content for line in rows(path)[0]] == ['{"a": "ä"}'.encode()]


def test_a_column_that_is_not_there_tells_nothing(file):
    assert rows(file({"json": [b"{}"]})) == [[Line(1, b"{}", {})]]


def test_a_row_without_json_is_broken(file):
    assert [line.reason for line in rows(file({"json": pa.array([None], pa.binary())}))[0]] == ["no-json"]


def test_parts_are_whole_row_groups_and_know_their_rows(file, monkeypatch):
    monkeypatch.setattr(parquet_rows, "_ROWS_PER_PART", 25)
    path = file({"json": [b"%d" % n for n in range(95)]}, rows_per_group=10)
    parts = parts_of(3, path)
    assert [(part.start, part.end, part.rows) for part in parts] == [
        (0, 2, 20),
        (2, 4, 20),
        (4, 6, 20),
        (6, 8, 20),
        (8, 10, 15),
    ]
    assert {(part.file, part.name) for part in parts} == {(3, str(path))}
    contents = [line.content for part in parts for line in read_rows(part)]
    assert contents == [b"%d" % n for n in range(95)]
    assert [line.number for line in read_rows(parts[-1])] == list(range(1, 16))


def test_a_file_without_rows_is_one_empty_part(file):
    assert rows(file({"json": pa.array([], pa.binary())})) == [[]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": ["{}"]}, "has no column 'json'.*its columns are body"),
        ({"json": [1]}, "column 'json' is of type int64 and must be binary or a string"),
        ({"json": [b"{}"], "outlier": ["yes"]}, "column 'outlier' is of type string and must be a boolean"),
        (
            {"json": [b"{}"], "stream_ordering": [1.5]},
            "column 'stream_ordering' is of type double and must be an integer",
        ),
        ({"json": [b"{}"], "room_version": [10]}, "column 'room_version' is of type int64 and must be a string"),
    ],
)
def test_a_file_of_another_schema_is_refused_by_its_column(file, columns, words):
    with pytest.raises(UnusableSource, match=words):
        parts_of(0, file(columns))


def test_a_file_that_breaks_off_is_refused(file):
    path = file({"json": [b"{}"] * 100})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UnusableSource, match=r"cannot be read as Parquet: .* Is it complete"):
        parts_of(0, path)


def test_a_damaged_row_group_is_one_broken_line_and_the_next_one_is_read(file):
    path = file(
        {"json": [b"%06d" % n * 20 for n in range(30)]},
        rows_per_group=10,
        use_dictionary=False,
        write_page_checksum=True,
    )
    with pq.ParquetFile(path) as whole:
        column = whole.metadata.row_group(1).column(0)
        damaged = column.data_page_offset + column.total_compressed_size - 20
    content = bytearray(path.read_bytes())
    content[damaged] ^= 0x10
    path.write_bytes(content)
    (found,) = rows(path)
    broken = [line for line in found if isinstance(line, BrokenLine)]
    assert [(line.reason, line.number) for line in broken] == [("corrupt-parquet", 11)]
    assert "row group 1" in broken[0].detail
    assert [line.number for line in found if isinstance(line, Line)] == [*range(1, 11), *range(21, 31)]


def test_only_rows_without_a_version_are_looked_at_beforehand(file):
    versions = ["10"] * 10 + ["10"] * 9 + [None]
    path = file({"json": [b"%d" % n for n in range(20)], "room_version": versions}, rows_per_group=10)
    (part,) = parts_of(0, path)
    assert [line.content for line in announcing_rows(part)] == [b"%d" % n for n in range(10, 20)]


def test_without_a_column_of_versions_all_rows_are(file):
    (part,) = parts_of(0, file({"json": [b"1", b"2"]}))
    assert len(list(announcing_rows(part))) == 2
