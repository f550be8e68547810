"""What may be named as the source of an import."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SourceChanged, UnusableSource
from pipeline.frames.sources.inputs import (
    check_unchanged,
    input_names,
    open_inputs,
    parts_of_inputs,
    read_part,
    unchanged,
)
from pipeline.frames.sources.parts import Form
from tests.support.synapse_database import sqlite_file


def parquet(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"json": [b"{}"]}), path)
    return path


def zstd(path):
    path.write_bytes(pa.compress(b"{}\n", codec="zstd", asbytes=True))
    return path


def write(path, content):
    path.write_bytes(content)
    return path


def test_each_form_is_known_by_its_content(tmp_path):
    files = {
        write(tmp_path / "a", b"{}\n"): Form.LINES,
        write(tmp_path / "b", gzip.compress(b"{}\n")): Form.GZIP,
        zstd(tmp_path / "c"): Form.ZSTD,
        parquet(tmp_path / "d"): Form.PARQUET,
        sqlite_file(tmp_path / "e", ["v9_restricted"]): Form.SQLITE,
        write(tmp_path / "f", b""): Form.LINES,
    }
    inputs = open_inputs([str(path) for path in files])
    assert [(one.name, one.form) for one in inputs] == [(str(path), form) for path, form in files.items()]
    with parts_of_inputs(inputs, 1 << 20) as parts:
        assert [part.file for part in parts] == list(range(len(files)))
        assert [len(list(read_part(part, 100))) for part in parts] == [1, 1, 1, 1, 37, 0]


def test_a_folder_is_all_its_parquet_files_in_order_but_for_hidden_ones(tmp_path):
    hidden = ("_temporary/0/x.parquet", ".hidden.parquet", "day=1/_temporary/0/x.parquet", "day=1/.c.parquet")
    for name in ("day=2/b.parquet", "day=1/z.parquet", "_key=1/c.parquet", *hidden):
        parquet(tmp_path / name)
    write(tmp_path / "_SUCCESS", b"")
    found = [one.name for one in open_inputs([str(tmp_path)])]
    assert found == [str(tmp_path / name) for name in ("_key=1/c.parquet", "day=1/z.parquet", "day=2/b.parquet")]


def fifo(path):
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda folder: folder / "missing", "Cannot read .*missing: No such file"),
        (lambda folder: folder, "holds no .*parquet files"),
        (lambda folder: parquet(folder / "_spark_metadata" / "0").parents[1], "sink of a streaming query"),
        (lambda folder: write(folder / "cut", b"SQLite format 3\0cut"), "Cannot read .*cut"),
        (lambda folder: fifo(folder / "fifo"), "fifo is no file that can be read more than once"),
        (lambda folder: "/dev/zero", "/dev/zero is no file that can be read more than once"),
        (lambda folder: write(folder / "bad\udcff.jsonl", b""), "no UTF-8, so it cannot be written down"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, made, words):
    with pytest.raises(UnusableSource, match=words):
        open_inputs([str(made(tmp_path))])


LINES = b'{"type":"m.x"}\n{"type":"m.y"}\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LINES.decode().encode("utf-16"), "is UTF-16 text, .* iconv -f UTF-16 -t UTF-8"),
        (LINES.decode().encode("utf-16-le"), "is UTF-16 text"),
        (LINES.decode().encode("utf-16-be"), "is UTF-16 text"),
        (b" \0\n\0" + LINES.decode().encode("utf-16-le"), "is UTF-16 text"),
        (LINES.decode().encode("utf-32"), "is UTF-32 text"),
        (LINES.decode().encode("utf-32-be"), "is UTF-32 text"),
        (b'[{"type":"m.x"},{"type":"m.y"}]\n', "is a JSON array, .* jq -c '.\\[\\]'"),
        (b' [\n  {"type":"m.x"},\n  {"type":"m.y"}\n]\n', "is a JSON array"),
        (b'\xef\xbb\xbf[{"type":"m.x"},\n{"type":"m.y"}]', "is a JSON array"),
        (b'[{"type":"m.x"},' + b'{"type":"m.y"},' * 10_000 + b"{}]", "is a JSON array"),
        (b"[]", "is a JSON array"),
        (b'\x1e{"type":"m.x"}\n\x1e{"type":"m.y"}\n', r"is a JSON text sequence \(RFC 7464\).* tr -d"),
        (b'{"type":"m.x"}\r{"type":"m.y"}\r', "carriage returns between the events, .* tr"),
        (b'{"type":"m.x"} \r \r{"type":"m.y"}', "carriage returns between the events"),
        (b'{\n  "type": "m.x"\n}\n{\n  "type": "m.y"\n}\n', "is JSON that is spread over several lines, .* jq -c ."),
        (bz2.compress(LINES), "a file of the form bzip2. Read are JSON Lines"),
        (lzma.compress(LINES), "of the form xz"),
        (b"PK\x03\x04" + bytes(30), "of the form ZIP"),
        (b"ARROW1\0\0", "of the form Arrow"),
        (b"rooms.jsonl" + bytes(246) + b"ustar\x0000" + bytes(300), "of the form tar"),
    ],
)
@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, lambda content: pa.compress(content, codec="zstd", asbytes=True)]
)
def test_a_file_that_holds_no_lines_of_events_is_refused_with_what_it_is(tmp_path, pack, content, words):
    path = write(tmp_path / "in.jsonl", pack(content))
    with pytest.raises(UnusableSource, match=f"^{path} .*{words}"):
        open_inputs([str(path)])


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + LINES,
        LINES.replace(b"\n", b"\r\n"),
        b"[1]\n" + LINES,  # a line that is put aside
        b"\0\xffzzz",
        b'{"body":"}\\r{"}\n',
        b"\n\n" + LINES,
        b"{\n" + LINES,
        b"",
        b"\xef\xbb\xbf",
        LINES + LINES.decode().encode("utf-16"),
        gzip.compress(LINES, mtime=0)[:-12],
        b"\x1f\x8b\x08damaged",
        b"\x28\xb5\x2f\xfddamaged",
    ],
)
def test_a_file_that_may_hold_lines_of_events_is_read(tmp_path, content):
    (one,) = open_inputs([str(write(tmp_path / "in.jsonl", content))])
    assert one.form in (Form.LINES, Form.GZIP, Form.ZSTD)


def test_a_file_that_is_packed_twice_is_refused(tmp_path):
    path = write(tmp_path / "in", gzip.compress(gzip.compress(LINES)))
    with pytest.raises(UnusableSource, match="is packed twice, with gzip inside"):
        open_inputs([str(path)])


def test_names_are_kept_absolute_and_without_passwords(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert input_names(["in.jsonl", "postgresql://u:secret@h/db"]) == [f"{tmp_path}/in.jsonl", "postgresql://u@h/db"]


def touched(path):
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "change",
    [lambda path: write(path, b"{}\n{}\n"), lambda path: write(path, b"[]\n"), touched, lambda path: path.unlink()],
)
def test_a_file_that_changed_is_noticed(tmp_path, change):
    path = write(tmp_path / "in", b"{}\n")
    inputs = open_inputs([str(path)])
    check_unchanged(inputs)
    os.utime(path, ns=(0, 0)) if change is not touched else None
    change(path)
    with pytest.raises(SourceChanged, match="has changed since the import began"):
        check_unchanged(inputs)


def test_a_sqlite_file_that_a_server_writes_to_is_noticed(tmp_path):
    path = sqlite_file(tmp_path / "in.db", ["v9_restricted"])
    inputs = open_inputs([str(path)])
    write(tmp_path / "in.db-wal", b"pages")
    with pytest.raises(SourceChanged):
        check_unchanged(inputs)


def test_a_resumed_import_wants_the_file_that_it_began_with(tmp_path):
    (one,) = open_inputs([str(write(tmp_path / "in", b"{}\n"))])
    assert unchanged(one, one.identity) == one
    with pytest.raises(SourceChanged, match="without --resume"):
        unchanged(one, {**one.identity, "size": 4})
