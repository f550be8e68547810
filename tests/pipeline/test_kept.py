"""Kept rows: a folder counts when it has its manifest, and what killed or repeated tasks leave is never read."""

from __future__ import annotations

import json

import pytest

from pipeline import SourceFrames, WorkedOutRooms, read_events, work_out_rooms
from pipeline.frames.kept import MANIFEST
from streams.jobs.errors import UnusableArguments
from tests.pipeline.frames import rows_of
from tests.pipeline.imports import bare_room, write_lines

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def read(spark, tmp_path_factory):
    return read_events(spark, [write_lines(tmp_path_factory.mktemp("source") / "in", *bare_room(1, 20), b"broken")])


def both(frames):
    return rows_of(frames.events), rows_of(frames.broken_lines)


def test_a_url_is_a_folder_too_and_can_be_opened_again(spark, read, tmp_path):
    url = (tmp_path / "a" / "kept").as_uri()
    kept = read.keep(url)
    again = SourceFrames.kept(spark, url)
    assert both(kept) == both(again) == both(read) and kept.sources == again.sources == read.sources
    about = json.loads((tmp_path / "a" / "kept" / MANIFEST).read_text())
    assert {path.name for path in (tmp_path / "a" / "kept").iterdir()} == {MANIFEST, *(f[0] for f in about["files"])}


def test_what_a_killed_keep_left_is_removed_and_what_a_late_task_leaves_is_not_read(spark, read, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "rows-000000-left.parquet").write_bytes(b"half a file")
    with pytest.raises(UnusableArguments, match="not finished"):
        SourceFrames.kept(spark, tmp_path / "kept")
    kept = read.keep(tmp_path / "kept")
    assert not (tmp_path / "kept" / "rows-000000-left.parquet").exists()
    (tmp_path / "kept" / "rows-000000-late.parquet").write_bytes(b"half a file")
    assert both(kept) == both(SourceFrames.kept(spark, tmp_path / "kept")) == both(read)


def test_a_folder_of_something_else_is_left_alone(read, tmp_path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UnusableArguments, match="exists already"):
        read.keep(tmp_path)
    read.keep(tmp_path / "new")
    with pytest.raises(UnusableArguments, match="exists already"):
        read.keep(tmp_path / "new")
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_folder_that_lost_a_file_or_part_of_one_or_has_other_rows_is_refused(spark, read, tmp_path):
    work_out_rooms(read).keep(tmp_path / "rooms")
    with pytest.raises(UnusableArguments, match="no lines of sources"):
        SourceFrames.kept(spark, tmp_path / "rooms")
    (file,) = (tmp_path / "rooms").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UnusableArguments, match="missing or incomplete"):
        WorkedOutRooms.kept(spark, tmp_path / "rooms")
    file.unlink()
    with pytest.raises(UnusableArguments, match="missing or incomplete"):
        WorkedOutRooms.kept(spark, tmp_path / "rooms")
    (tmp_path / "rooms" / MANIFEST).write_text("{")
    with pytest.raises(UnusableArguments, match="cannot be read"):
        WorkedOutRooms.kept(spark, tmp_path / "rooms")


def test_what_kept_rooms_contain_is_read_from_the_manifest(spark, tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 5), *bare_room(2, 7))
    computed = work_out_rooms(read_events(spark, [path]).events)
    kept = computed.keep(tmp_path / "rooms")
    assert kept.in_files is not None and computed.in_files is None
    for contents in (kept.in_files, kept.contents(), computed.contents()):
        assert contents.events == 12 and sorted(contents.room_ids) == ["!made1:example.org", "!made2:example.org"]
