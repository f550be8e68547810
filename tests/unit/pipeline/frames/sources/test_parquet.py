"""Rows of Parquet files: which columns count, and what becomes of files that are not as they should be."""

from __future__ import annotations

import io
import secrets
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UnusableSource
from pipeline.frames.sources import expansion, parquet
from pipeline.frames.sources.parquet import announcing_rows, check_file, parts_of, read_rows
from pipeline.frames.sources.parquet_pages import BadPage, pages
from pipeline.frames.sources.parts import BrokenLine, Line
from tests.support.growth import growth


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


def test_unread_columns_cost_no_more_than_the_footer_that_names_them(tmp_path):
    def make(columns):
        path = tmp_path / f"{columns}.parquet"
        pq.write_table(pa.table({f"unread {n}": [n] for n in range(columns)} | {"json": [b"{}"]}), path)
        return lambda: (check_file(path), list(read_rows(*parts_of(0, path))))

    assert growth(make, 1_000, runs=3) < 8  # 16 if each is compared with all others


def test_fields_of_structures_are_no_columns(file):
    path = file({"other": [{"json": b"no", "event_id": 5}], "json": [b"{}"], "event_id": ["$a"]})
    assert rows(path) == [[Line(1, b"{}", {"event_id": "$a"})]]


def test_a_row_without_json_is_broken(file):
    assert [line.reason for line in rows(file({"json": pa.array([None], pa.binary())}))[0]] == ["no-json"]


def test_parts_are_whole_row_groups_and_know_their_rows(file, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS_PER_PART", 25)
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


# --- small files that stand for much --------------------------------------------------------------------------------------

LARGE = b"x" * 4_000_000
MB = 1024 * 1024
_pools = []


@pytest.fixture
def memory():
    """``memory()``: most bytes that Arrow has held since the test began."""
    before = pa.default_memory_pool()
    _pools.append(pa.proxy_memory_pool(before))  # kept: what was made in it may live longer than the test
    pa.set_memory_pool(_pools[-1])
    yield _pools[-1].max_memory
    pa.set_memory_pool(before)


def repeated(value, count):
    """Returns a column with the value in each row. It is in memory once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [value])


#: One dictionary page. Without Arrow's schema the file has plain columns, as other programs write them.
IN_A_DICTIONARY = {"dictionary_pagesize_limit": 2**30, "store_schema": False}


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"json": repeated(LARGE, 1000)}, IN_A_DICTIONARY),
        ({"json": [b"{}"] * 1000, "rejected_reason": repeated(LARGE.decode(), 1000)}, IN_A_DICTIONARY),
        ({"json": [LARGE] * 60}, {"use_dictionary": False, "column_encoding": {"json": "DELTA_BYTE_ARRAY"}}),
        ({"json": [LARGE] * 60}, {"use_dictionary": False, "write_batch_size": 1, "data_page_size": 1}),
        ({"json": repeated(LARGE, 200)}, {"dictionary_pagesize_limit": 2**30}),
        ({"json": [LARGE] * 60}, {"use_dictionary": False, "data_page_size": 2**30}),
    ],
    ids=["a dictionary", "of another column", "prefixes", "many pages", "a type with a dictionary", "one page"],
)
@pytest.mark.memory
def test_a_small_file_takes_little_memory_whatever_it_unpacks_to(file, columns, options, memory):
    path = file(columns, compression="zstd", write_statistics=False, **options)
    del columns
    assert path.stat().st_size < MB
    before = memory()
    (found,) = rows(path)
    assert memory() - before < 150 * MB
    broken = found[-1]
    if options.get("data_page_size") == 2**30:
        assert (len(found), broken.reason) == (1, "page-too-large")
        assert "unpacks to 240,0" in broken.detail and "Write the file with smaller pages." in broken.detail
    else:
        assert broken.reason == "expands-too-much" and len(found) < 30
        assert "row group 0: " in broken.detail and "unpack it and import what was in it" in broken.detail


def test_row_groups_that_share_their_pages_are_refused(file):
    """A footer of 180 kB named 10 kB of pages 2,000 times, and gave six gigabytes of events."""
    path = file({"json": [secrets.token_bytes(1_000)] * 10})
    metadata, footer = pq.read_metadata(path), io.BytesIO()
    metadata.append_row_groups(pq.read_metadata(path))
    metadata.write_metadata_file(footer)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[: -8 - length] + footer.getvalue()[4:])
    assert pq.ParquetFile(path).read().num_rows == 20
    with pytest.raises(UnusableSource, match="its row groups claim"):
        parts_of(0, path)


def test_parts_share_what_a_file_may_expand_to(file, monkeypatch):
    """Each part of 50,000 rows had 64 MB of its own, and takes a hundred bytes of the file."""
    monkeypatch.setattr(expansion, "FREE_BYTES", 1_000_000)
    monkeypatch.setattr(parquet, "_ROWS_PER_PART", 90)
    path = file({"json": [b"x" * 9_000] * 900}, rows_per_group=90, compression="zstd")
    found = [line for part in parts_of(0, path) for line in read_rows(part)]
    assert sum(len(line.content) for line in found if isinstance(line, Line)) < 3_000_000
    assert sum(isinstance(line, BrokenLine) for line in found) == len(parts_of(0, path)) == 10


def test_row_groups_before_one_of_nothing_are_in(file):
    path = file({"json": [b"{}"] * 50 + [LARGE] * 50}, rows_per_group=50, compression="zstd")
    (found,) = rows(path)
    assert found[:50] == [Line(number, b"{}", {}) for number in range(1, 51)]
    assert [line.reason for line in found if isinstance(line, BrokenLine)] == ["expands-too-much"]


def test_rows_without_anything_in_them_come_to_an_end(file):
    path = file({"json": pa.array([None] * 1_000_000, pa.binary())}, rows_per_group=1_000_000, compression="zstd")
    (found,) = rows(path)
    assert found[-1].reason == "expands-too-much" and len(found) < 200_000


def test_a_text_beside_the_event_has_a_limit(file):
    path = file({"json": [b"{}", b"{}"], "rejected_reason": ["y" * 70_000, "z"]}, use_dictionary=False)
    (found,) = rows(path)
    assert [line.number for line in found] == [1, 2] and isinstance(found[1], Line)
    assert (found[0].reason, found[0].detail) == (
        "line-too-long", "column 'rejected_reason' has 70,000 characters, the limit is 65,536",
    )  # fmt: skip


def test_a_history_is_read_whole_however_often_its_words_come_again(file):
    events = [
        b'{"body": "%s", "hashes": "%s"}' % (b"ha " * 2_000, secrets.token_urlsafe(32).encode()) for _ in range(15_000)
    ]
    (found,) = rows(
        file({"json": events, "room_version": ["10"] * len(events)}, rows_per_group=50_000, compression="zstd")
    )
    assert [line.content for line in found] == events


def test_a_file_that_claims_too_many_rows_is_refused(file, monkeypatch):
    monkeypatch.setattr(parquet, "_MOST_ROWS", 5)
    with pytest.raises(UnusableSource, match=r"claims to have 6 rows; at most 5 are read of a file. Split it"):
        parts_of(0, file({"json": [b"{}"] * 6}))


@pytest.mark.parametrize(
    "options", [{}, {"data_page_version": "2.0"}, {"use_dictionary": False}, {"write_page_checksum": True}]
)
def test_pages_are_what_the_file_was_written_with(file, options):
    values = [b"%05d" % (n % 100) for n in range(10_000)]
    path = file({"json": values}, rows_per_group=10_000, compression="zstd", **options)
    with pq.ParquetFile(path) as source:
        column = source.metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    with path.open("rb") as raw:
        found = list(pages(raw, start, column.total_compressed_size))
    assert [page.is_dictionary for page in found[:1]] == [options.get("use_dictionary", True)]
    assert sum(page.values for page in found if not page.is_dictionary) == 10_000
    assert 0 < sum(page.size for page in found) <= column.total_uncompressed_size


@pytest.mark.parametrize(
    "content", [b"", b"\x15", b"\xff" * 40, b"\x1c" * 40, b"\x19\x99" * 20, b"\x15\x00\x15\x01\x00", b"\x00"],
    ids=["nothing", "a beginning", "unknown", "structures", "lists", "a size below zero", "no sizes"],
)  # fmt: skip
def test_bytes_that_are_no_page_are_one_error(content):
    with pytest.raises(BadPage):
        list(pages(io.BytesIO(content), 0, max(len(content), 1)))


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_the_look_at_pages_ends(content):
    with suppress(BadPage):
        list(pages(io.BytesIO(content), 0, len(content)))
