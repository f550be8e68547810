"""Manifests and digests of archives."""

import hashlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.archive.format import (
    MANIFEST,
    MOST_FILES,
    ONE_FILE,
    TABLES,
    ArchivedFile,
    Manifest,
    digest_of,
    file_sha256,
    read_manifest,
    write_manifest,
)
from pipeline.archive.read_parts import open_archive
from pipeline.errors import ArchiveDamaged

EVENTS = "event-00000.parquet"
SHA256 = hashlib.sha256(b"abcd").hexdigest()
FILES = (
    ArchivedFile(EVENTS, "event", 3, 4, SHA256, SHA256),
    *(ArchivedFile(f"{table}-00000.parquet", table, 0, 4, SHA256, SHA256) for table in ONE_FILE),
)


def manifest(**changes):
    given = {
        "room_id": "!r:a.test", "room_version": "10", "cut": 5, "delete_local": True, "server_name": "a.test",
        "archived_at": "2026-01-01T00:00:00Z", "job": 7, "positions": (-3, 9), "files": FILES,
    }  # fmt: skip
    return Manifest(**{**given, **changes})


def rewritten(folder, change):
    """The manifest with another content under a seal that fits."""
    text, seal = (folder / MANIFEST).read_text().rstrip("\n").rsplit("\n", 1)
    value = json.loads(text)
    change(value)
    text = json.dumps(value)
    seal = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(f"{text}\n{seal}\n")


def test_a_manifest_comes_back(tmp_path):
    write_manifest(tmp_path, manifest())
    assert read_manifest(tmp_path) == manifest()
    assert (manifest().rows("event"), manifest().rows("group"), manifest().size) == (3, 0, 24)


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\nabc\n", b"\xff\n\n", b"null"])
def test_what_is_no_manifest(content, tmp_path):
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(ArchiveDamaged):
        read_manifest(tmp_path)


def test_every_single_flipped_bit_of_a_manifest_is_found(tmp_path):
    write_manifest(tmp_path, manifest())
    content = (tmp_path / MANIFEST).read_bytes()
    for place in range(0, len(content) - 1, 7):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        (tmp_path / MANIFEST).write_bytes(flipped)
        with pytest.raises(ArchiveDamaged):
            read_manifest(tmp_path)


def test_a_later_format_is_refused(tmp_path):
    write_manifest(tmp_path, manifest())
    rewritten(tmp_path, lambda value: value.update(version=2))
    with pytest.raises(ArchiveDamaged, match="later version"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("room_id"),
        lambda value: value.pop("files"),
        lambda value: value.update(more=1),
        lambda value: value.update(files=[{"name": "event-00000.parquet"}]),
        lambda value: value.update(positions=None),
    ],
)
def test_a_manifest_that_we_have_not_written_is_refused_though_its_seal_fits(change, tmp_path):
    write_manifest(tmp_path, manifest())
    rewritten(tmp_path, change)
    with pytest.raises(ArchiveDamaged, match="none that this program has written"):
        read_manifest(tmp_path)


def test_a_file_that_is_none_is_not_waited_for(tmp_path):
    write_manifest(tmp_path, manifest())
    os.mkfifo(tmp_path / FILES[0].name)
    with pytest.raises(ArchiveDamaged, match="is no file"):
        open_archive(tmp_path)


def written(folder):
    """An archive whose tables have no rows, and its manifest."""
    files = []
    for table in ("event", *ONE_FILE):
        path = folder / f"{table}-00000.parquet"
        pq.write_table(TABLES[table].schema().empty_table(), path)
        _, digest = digest_of(table, [])
        files.append(ArchivedFile(path.name, table, 0, path.stat().st_size, file_sha256(path), digest))
    write_manifest(folder, found := manifest(files=tuple(files)))
    return found


@pytest.mark.parametrize(
    "change", [lambda text: text[:-1], lambda text: text + b"e", lambda text: b"Q" + text[1:], None]
)
def test_files_are_looked_at_before_anything_else(change, tmp_path):
    found, path = written(tmp_path), tmp_path / EVENTS
    assert open_archive(tmp_path) == found
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArchiveDamaged, match=path.name):
        open_archive(tmp_path)


def of_file(**changes):
    return lambda value: value["files"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda value: value.update(room_id="!r\0:a.test"), "no room ID"),
        (lambda value: value.update(room_id="!r\ud800:a.test"), "no room ID"),
        (lambda value: value.update(room_id=5), "no room ID"),
        (lambda value: value.update(room_version="99"), "'99' is no room version"),
        (lambda value: value.update(room_version=["10"]), "no room version"),
        (lambda value: value.update(cut="5"), "cut is '5'"),
        (lambda value: value.update(delete_local="no"), "delete_local"),
        (lambda value: value.update(server_name=None), "server_name"),
        (lambda value: value.update(archived_at=7), "archived_at"),
        (lambda value: value.update(job="7"), "job is '7'"),
        (lambda value: value.update(positions=["-3", 9]), "positions"),
        (lambda value: value.update(positions=[1]), "positions"),
        (lambda value: value.update(positions=[0, 2**63]), "positions"),
        (lambda value: value.update(files=[]), "0 files of the table room"),
        (lambda value: value.update(cut=None), "0 files of the table current"),
        (lambda value: value["files"].append(value["files"][0]), "is listed twice"),
        (of_file(rows=-1), "rows of 'event-00000.parquet' is -1"),
        (of_file(rows="3"), "rows of"),
        (of_file(rows=True), "rows of"),
        (of_file(size=1.5), "size of"),
        (of_file(sha256=5), "sha256 of"),
        (of_file(digest="x"), "digest of"),
        (of_file(name=5), "names a file 5"),
        (of_file(table=["event"]), "of a table"),
        (of_file(table="group"), "of a table 'group'"),
    ],
)
def test_each_forged_value_is_named_with_where_and_what_to_do(change, named, tmp_path):
    write_manifest(tmp_path, manifest())
    rewritten(tmp_path, change)
    with pytest.raises(ArchiveDamaged, match=named) as raised:
        read_manifest(tmp_path)
    assert str(tmp_path / MANIFEST) in str(raised.value)
    assert "Take another copy of the archive" in str(raised.value)


def test_a_manifest_of_too_many_files_is_refused_by_their_number(tmp_path):
    write_manifest(tmp_path, manifest())
    rewritten(tmp_path, lambda value: value.update(files=[{}] * (MOST_FILES + 1)))
    with pytest.raises(ArchiveDamaged, match=r"lists 20,001 files, and an archive has at most 20,000\."):
        read_manifest(tmp_path)


def test_the_largest_manifest_that_can_be_written_is_read(tmp_path):
    more = (ArchivedFile(f"event-{n:05}.parquet", "event", 1, 1, SHA256, SHA256) for n in range(1, MOST_FILES))
    files = (*FILES, *more)[:MOST_FILES]
    write_manifest(tmp_path, manifest(files=files))
    assert len(read_manifest(tmp_path).files) == MOST_FILES


@pytest.mark.parametrize("rows", [1, 10**12])
def test_rows_that_the_footer_does_not_have_are_refused(rows, tmp_path):
    written(tmp_path)
    rewritten(tmp_path, of_file(rows=rows))
    with pytest.raises(ArchiveDamaged, match=f"{EVENTS} has 0 rows, and the manifest says {rows:,}"):
        open_archive(tmp_path)


def test_a_false_digest_is_refused(tmp_path):
    written(tmp_path)
    rewritten(tmp_path, of_file(digest=SHA256))
    with pytest.raises(ArchiveDamaged, match=f"{EVENTS} does not hold the rows"):
        open_archive(tmp_path)


def test_a_file_with_columns_of_other_types_is_refused(tmp_path):
    written(tmp_path)
    schema = pa.schema([(name, pa.string()) for name in TABLES["event"].columns])
    pq.write_table(schema.empty_table(), tmp_path / EVENTS)
    rewritten(tmp_path, of_file(sha256=file_sha256(tmp_path / EVENTS)))
    with pytest.raises(ArchiveDamaged, match="other columns"):
        open_archive(tmp_path)


def test_a_file_outside_the_archive_is_not_read(tmp_path):
    folder = tmp_path / "archive"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"abcd")
    write_manifest(folder, manifest(files=(ArchivedFile("../secret", "event", 3, 4, SHA256, SHA256), *FILES[1:])))
    with pytest.raises(ArchiveDamaged, match="names a file"):
        open_archive(folder)


def test_a_digest_tells_order_nulls_and_bytes_apart():
    def digest(*rows):
        names = list(TABLES["delta"].columns)
        columns = {name: [row[n] for row in rows] for n, name in enumerate(names)}
        return digest_of("delta", [pa.RecordBatch.from_pydict(columns, schema=TABLES["delta"].schema())])

    one, other = (1, 2, "t", "k", None), (1, 2, "t", "k", "\\N ")
    found = {digest(one), digest(other), digest(one, other), digest(other, one), digest()}
    assert len(found) == 5
    assert digest(one, other)[0] == 2


def test_the_bytes_of_a_large_file(tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "x").write_bytes(content)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()
