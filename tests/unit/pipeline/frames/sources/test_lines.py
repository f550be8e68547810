"""Lines of files, whatever is in them."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections import deque

import pyarrow
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline.frames.sources import lines as lines_module
from pipeline.frames.sources.lines import announcing_lines, parts_of, read_lines
from pipeline.frames.sources.parts import HEAD_BYTES, BrokenLine, Line, PassedLines

LIMIT = 100


def read(path, part_bytes=1 << 20, limit=LIMIT):
    return [list(read_lines(part, limit)) for part in parts_of(0, path, part_bytes)]


@pytest.fixture
def file(tmp_path):
    def write(content: bytes, name: str = "in.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def test_lines_are_numbered_from_one_and_keep_their_bytes(file):
    content = b'{"a": "\\u0000"}\r\n\xff\xfe not utf-8\n{"b":\x00}'
    assert read(file(content)) == [
        [Line(1, b'{"a": "\\u0000"}\r'), Line(2, b"\xff\xfe not utf-8"), Line(3, b'{"b":\x00}')]
    ]


def test_blank_lines_count_in_the_numbering_only(file):
    assert read(file(b"\na\n  \t\nb\n\n")) == [[Line(2, b"a"), Line(4, b"b")]]


def test_an_empty_file_has_no_lines(file):
    assert read(file(b"")) == [[]]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nshort\n"])
def test_a_line_beyond_the_limit_is_broken_and_the_rest_is_read(file, end):
    first, *rest = read(file(b"x" * (LIMIT + 1) + end))[0]
    assert (first.number, first.reason, first.head) == (1, "line-too-long", b"x" * LIMIT + b"x")
    assert rest == ([Line(2, b"short")] if b"short" in end else [])


def test_a_line_of_exactly_the_limit_is_whole(file):
    assert read(file(b"x" * LIMIT + b"\n")) == [[Line(1, b"x" * LIMIT)]]


def test_of_a_huge_line_only_the_head_is_kept(file):
    (broken,) = read(file(b"y" * 5_000_000), limit=1000)[0]
    assert len(broken.head) == HEAD_BYTES
    assert "5000000 bytes" in broken.detail


def test_gzip_is_known_by_its_content_not_by_its_name(file):
    assert read(file(gzip.compress(b"a\nb\n"), "plain.jsonl")) == [[Line(1, b"a"), Line(2, b"b")]]


def test_several_gzip_members_are_one_file(file):
    assert read(file(gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n"))) == [
        [Line(1, b"a"), Line(2, b"bc"), Line(3, b"d")]
    ]


def test_a_truncated_gzip_keeps_the_lines_before_the_break(file):
    lines = b"".join(b"line %d of some length %d\n" % (n, n * n * 7919) for n in range(5_000))
    found = read(file(gzip.compress(lines)[:-2000]))[0]
    *whole, last = found
    assert last.reason == "truncated-gzip" and last.number == len(whole) + 1
    assert (
        len(whole) > 1000
        and b"\n".join(line.content for line in whole) == lines[: sum(len(w.content) + 1 for w in whole) - 1]
    )


def test_a_corrupt_gzip_is_one_broken_line(file):
    content = bytearray(gzip.compress(bytes(range(256)) * 2000))
    content[len(content) // 2] ^= 0xFF
    found = read(file(bytes(content)), limit=1 << 20)[0]
    assert isinstance(found[-1], BrokenLine) and found[-1].reason in ("corrupt-gzip", "truncated-gzip")


def gzip_of_repeated(content, times, end):
    """Returns one gzip member. The content is compressed once, into a block that needs nothing before it."""
    block, last = (zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS) for _ in range(2))
    packed = block.compress(content) + block.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(times):
        crc = zlib.crc32(content, crc)
    trailer = struct.pack("<II", zlib.crc32(end, crc), (len(content) * times + len(end)) % 2**32)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + packed * times + last.compress(end) + last.flush() + trailer


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
@pytest.mark.parametrize(
    ("piece", "pieces"),
    [
        (b"\n", 2**27),
        (b" ", 2**27),
        (b" \r\n", 2**25),
        (b"y", 2**27),
        (b"{}\n", 2**25),
        (b'{"type": "m.room.message"}\n', 2**22),
    ],
    ids=["blank lines", "blanks", "blank lines with blanks", "one endless line", "tiny lines", "one line"],
)
def test_an_archive_of_nothing_comes_to_an_end(tmp_path, pack, piece, pieces):
    path = tmp_path / "in.jsonl"
    content = piece * (pieces // 256)
    if pack == "gzip":
        path.write_bytes(gzip_of_repeated(content, 256, b"last\n"))
    else:
        with pyarrow.CompressedOutputStream(str(path), pack) as packed:
            for _ in range(256):
                packed.write(content)
            packed.write(b"last\n")
    assert path.stat().st_size < 1 << 20
    (part,) = parts_of(0, path, 1)
    found = deque(enumerate(read_lines(part, LIMIT), 1), maxlen=1)
    ((kept, last),) = found
    assert last.reason == "expands-too-much" and kept < 400_000
    assert "unpack it and import what was in it" in last.detail
    *_, passed = announcing_lines(part, LIMIT, WORD)
    assert passed == PassedLines(last.number)


def test_an_archive_in_an_archive_is_a_line_that_is_none(file):
    inner = gzip.compress(b"a\nb\n" * 100)
    (found,) = read(file(gzip.compress(inner)), limit=1 << 20)
    assert b"\n".join(line.content for line in found).startswith(b"\x1f\x8b")


def test_many_blank_lines_between_others_count(file):
    content = b"a\n" + b"\n" * 3_000_000 + b"  \n" * 1_000_000 + b"b\n" + b"\n" * 2_000_000 + b"c"
    assert read(file(content), part_bytes=1 << 30) == [[Line(1, b"a"), Line(4_000_002, b"b"), Line(6_000_003, b"c")]]


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


def test_zstandard_is_known_by_its_content_not_by_its_name(file):
    assert read(file(zstd(b"a\nb\n"), "plain.jsonl")) == [[Line(1, b"a"), Line(2, b"b")]]


def test_several_zstandard_frames_and_ones_to_be_skipped_are_one_file(file):
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    assert read(file(skipped + zstd(b"a\nb") + zstd(b"c\n"))) == [[Line(1, b"a"), Line(2, b"bc")]]


@pytest.mark.parametrize("cut", [2000, 40_000])
def test_a_truncated_zstandard_file_keeps_every_whole_line_before_the_break(file, cut):
    lines = b"".join(b"line %d of some length %d\n" % (n, n * n * 7919) for n in range(30_000))
    (*whole, last), *_ = read(file(zstd(lines)[:-cut]))
    kept = b"".join(line.content + b"\n" for line in whole)
    assert last.reason == "truncated-zstd" and last.number == len(whole) + 1 > 1000
    assert lines.startswith(kept) and len(kept) > 100_000


def test_a_corrupt_zstandard_file_is_one_broken_line(file):
    content = bytearray(zstd(bytes(range(256)) * 2000))
    content[6:20] = b"\xff" * 14
    found = read(file(bytes(content)), limit=1 << 20)[0]
    assert isinstance(found[-1], BrokenLine) and found[-1].reason in ("corrupt-zstd", "truncated-zstd")


def frame(header: bytes) -> bytes:
    """A frame with one line that is not compressed. ``header`` has what follows the magic number."""
    content = b'{"a":1}\n'
    return b"\x28\xb5\x2f\xfd" + header + (len(content) << 3 | 1).to_bytes(3, "little") + content


@pytest.mark.parametrize(
    ("header", "reason", "words"),
    [
        (bytes([0x00, 28 - 10 << 3]), "window-too-large", "zstd -d --long=31"),
        (bytes([0x00, 31 - 10 << 3]), "window-too-large", "128 MB"),
        (bytes([0x00, 32 - 10 << 3]), "corrupt-zstd", "memory"),  # no program writes this
        (bytes([0xE0]) + (300 << 20).to_bytes(8, "little"), "window-too-large", "whole content"),
        (bytes([0xE0]) + (1 << 60).to_bytes(8, "little"), "corrupt-zstd", "memory"),
        (bytes([0x01, 20 - 10 << 3, 7]), "unsupported-zstd", "zstd -d -D DICTIONARY"),
    ],
)
def test_a_whole_zstandard_file_beyond_the_limits_is_not_called_corrupt(file, header, reason, words):
    noise = random.Random(1).randbytes(2 << 20)  # so that 300 MB of content are possible
    (found,) = read(file(zstd(b"a\n") + frame(header) if reason == "window-too-large" else frame(header)))
    assert found[-1].reason == reason and words in found[-1].detail
    if reason == "window-too-large":
        assert found[0] == Line(1, b"a")
        assert read(file(frame(header) + noise))[0][-1].reason == reason


def test_a_byte_order_mark_alone_is_a_blank_line(file):
    assert read(file(b"\xef\xbb\xbf")) == [[]]
    assert read(file(b"\xef\xbb\xbf\na\n")) == [[Line(2, b"a")]]


def test_a_compressed_file_that_goes_away_is_an_error_of_the_file_system(file, tmp_path):
    (part,) = parts_of(0, file(zstd(b"a\n")), 1)
    (tmp_path / "in.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        list(read_lines(part, LIMIT))


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)), st.integers(1, 40))
def test_parts_give_every_line_once_wherever_they_are_cut(tmp_path_factory, lines, part_bytes):
    path = tmp_path_factory.mktemp("parts") / "in"
    path.write_bytes(b"\n".join(lines))
    assume(
        not path.read_bytes().startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
    )  # a compressed file, by its first bytes
    whole = [line.content for line in read(path)[0]]
    assert [line.content for part in read(path, part_bytes) for line in part] == whole
    assert whole == [line for line in lines if line.strip()]


# --- lines that hold a word -------------------------------------------------------------------------------------------

WORD = b"word"
PIECES = st.sampled_from([b"\n", b"word", b"wo", b"rd", b" ", b"\r", b"x", b"x" * 20])
CONTENT = st.lists(PIECES, max_size=60).map(b"".join)


def holding(found):
    return [line for line in found if isinstance(line, Line) and WORD in line.content]


def announcing(part, limit=LIMIT):
    *lines, last = announcing_lines(part, limit, WORD)
    return lines, last


@given(CONTENT, st.integers(1, 50), st.integers(1, 12), st.integers(1, 60))
def test_lines_that_hold_a_word_are_those_that_are_found_by_reading_all(
    tmp_path_factory, content, limit, chunk, part_bytes
):
    path = tmp_path_factory.mktemp("parts") / "in"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_CHUNK_BYTES", chunk)
        for part in parts_of(0, path, part_bytes):
            assert holding(announcing(part, limit)[0]) == holding(read_lines(part, limit))


@given(CONTENT, st.integers(1, 12), st.integers(1, 60))
def test_all_parts_together_have_the_files_lines_with_blank_ones(tmp_path_factory, content, chunk, part_bytes):
    path = tmp_path_factory.mktemp("parts") / "in"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_CHUNK_BYTES", chunk)
        lasts = [announcing(part)[1] for part in parts_of(0, path, part_bytes)]
    assert sum(last.number for last in lasts) == len(content.split(b"\n")) - content.endswith(b"\n") - (not content)


@given(CONTENT, st.integers(1, 12))
@example(b"x" * 40 + b"\n", 1)
def test_chunks_may_end_anywhere(tmp_path_factory, content, chunk):
    path = tmp_path_factory.mktemp("parts") / "in"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_CHUNK_BYTES", chunk)
        small = read(path, limit=30)
    assert small == read(path, limit=30)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_an_archive_that_breaks_off_counts_the_line_it_breaks_in(file, pack):
    lines = b"".join(b"line %d of some length %d\n" % (n, n * n * 7919) for n in range(30_000))
    (part,) = parts_of(0, file(pack(lines)[:-2000]), 1)
    found, last = announcing(part)
    assert last == PassedLines(list(read_lines(part, LIMIT))[-1].number) and last.number > 1000
    assert isinstance(found[-1], BrokenLine) and len(found) < 1000


def test_a_line_beyond_the_limit_is_not_given_for_its_word(file):
    (part,) = parts_of(0, file(b"a\n" + WORD + b"y" * LIMIT + b"\n" + WORD + b"\n\n"), 1 << 20)
    found, last = announcing(part)
    assert [line.number for line in holding(found)] == [3] and last == PassedLines(4)
