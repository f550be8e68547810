"""Manifests and digests of archives."""

import hashlib
import json
import os

import pyarrow as pa
import pytest

from pipeline.archive.format import (
    MANIFEST,
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

FILES = (ArchivedFile("event-00000.parquet", "event", 3, 4, hashlib.sha256(b"abcd").hexdigest(), "x"),)


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
    assert (manifest().rows("event"), manifest().rows("group"), manifest().size) == (3, 0, 4)


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


@pytest.mark.parametrize("content", [b"abce", b"abc", b"abcde", None])
def test_files_are_looked_at_before_anything_else(content, tmp_path):
    write_manifest(tmp_path, manifest())
    path = tmp_path / FILES[0].name
    path.write_bytes(b"abcd")
    assert open_archive(tmp_path) == manifest()
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ArchiveDamaged, match=path.name):
        open_archive(tmp_path)


def test_a_file_outside_the_archive_is_not_read(tmp_path):
    folder = tmp_path / "archive"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"abcd")
    write_manifest(folder, manifest(files=(ArchivedFile("../secret", "event", 3, 4, FILES[0].sha256, "x"),)))
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
