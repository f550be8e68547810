"""The rows of rooms from sorted batches: the same whatever the batches, the chunks, and whether a room is in a file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.frames import room_events
from pipeline.frames.bundles import bundled
from pipeline.frames.event_columns import event_arrays, parsed_events
from pipeline.frames.parse_lines import LineRules, parse_lines
from pipeline.frames.room_events import RoomEvents, rooms_of
from pipeline.frames.room_rows import room_rows
from pipeline.frames.schemas import EVENTS, ROOM_FRAMES
from pipeline.frames.sources.parts import Line
from tests.support.room_data import ROOM_NAMES, event_lines
from tests.support.room_results import GivenEvents, room_history

SMALL_ROOMS = [room for room in ROOM_NAMES if room != "large_v10"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where Spark lets its workers put temporary files."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    return tmp_path


def batch_of(room):
    """The events of a shipped room in stream order."""
    lines = [Line(n, line) for n, line in enumerate(event_lines(room), 1)]
    found = sorted(parse_lines(lines, LineRules()), key=lambda one: (one[1].stream_ordering, one[0]))
    columns = event_arrays([event for _, event in found])
    columns |= {
        "source": pa.array([0] * len(found), pa.int64()),
        "line": pa.array([number for number, _ in found], pa.int64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS.arrow())


def cut(batch, rows):
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def tables(rooms, **options):
    """All rows of rooms by frame."""
    found = {name: [] for name in ROOM_FRAMES}
    for room in rooms:
        for name, batch in room_rows(room, **options):
            assert batch.schema == ROOM_FRAMES[name].arrow()
            found[name] += batch.to_pylist()
    return found


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_chunks_batches_and_files_make_no_difference(room, monkeypatch):
    batch = batch_of(room)
    whole = tables([RoomEvents([batch])])
    assert len(whole["events"]) == batch.num_rows and len(whole["rooms"]) == 1
    monkeypatch.setattr(room_events, "BYTES_IN_MEMORY", 20_000)
    assert tables(rooms_of(cut(batch, 13)), chunk=17) == whole


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_rows_are_those_of_the_history(room):
    """Against the rows that other tests hold against a real server's answers."""
    batch = batch_of(room)
    expected, found = room_history(parsed_events(batch)), tables([RoomEvents([batch])])
    assert [(row["event_id"], row["group_number"]) for row in found["events"] if row["group_number"] is not None] == (
        expected.event_groups
    )
    assert [(row["event_id"], row["prev_event_id"]) for row in found["edges"]] == expected.edges
    assert [(row["event_id"], row["auth_event_ids"]) for row in found["auth_edges"]] == expected.auth
    assert [tuple(row.values())[1:] for row in found["state_groups"]] == expected.groups
    assert [tuple(row.values())[1:] for row in found["current_state"]] == expected.current_state
    assert len(found["visibility"]) == len(expected.visibility)


def test_rooms_of_one_stream_are_told_apart_however_the_batches_are_cut(monkeypatch):
    monkeypatch.setattr(room_events, "BYTES_IN_MEMORY", 60_000)
    whole = [batch_of(room) for room in SMALL_ROOMS[:4]]
    together = pa.Table.from_batches(whole).combine_chunks().to_batches()[0]
    for rows in (1, 50, 10_000):
        sizes = [(room.room_id, len(room), list(room.event_ids())) for room in rooms_of(cut(together, rows))]
        assert sizes == [
            (batch["room_id"][0].as_py(), batch.num_rows, batch["event_id"].to_pylist()) for batch in whole
        ]


def test_it_answers_as_events_in_memory_do():
    batch = batch_of("v12_power_fork")
    room, plain = RoomEvents(cut(batch, 9)), GivenEvents(parsed_events(batch))
    numbers = [40, 3, 3, 41, 0, len(room) - 1]
    assert (len(room), room.room_id, room.version) == (len(plain), plain.room_id, plain.version)
    assert room.fetch(numbers) == plain.fetch(numbers) and room.names(numbers) == plain.names(numbers)
    assert room.fetch(range(5, 30)) == plain.fetch(range(5, 30)) and room.fetch([]) == []
    assert list(room.creations()) == list(plain.creations()) and list(room.event_ids()) == list(plain.event_ids())


def test_a_room_in_a_file_leaves_nothing_behind(folder, monkeypatch):
    monkeypatch.setattr(room_events, "BYTES_IN_MEMORY", 1_000)
    batch = batch_of("v9_restricted")
    (room,) = rooms_of([batch])
    assert len(list(room.event_ids())) == batch.num_rows and list(folder.iterdir()) == []


def test_bundles_hold_all_rows_in_bounded_pieces():
    rooms = [RoomEvents([batch_of(room)]) for room in SMALL_ROOMS]
    expected = tables(rooms)
    found = {name: [] for name in ROOM_FRAMES}
    for bundle in bundled(7, (rows for room in rooms for rows in room_rows(room))):
        ((pack, name, rows, content),) = (tuple(row.values()) for row in bundle.to_pylist())
        batch = pa.ipc.read_record_batch(pa.py_buffer(content), ROOM_FRAMES[name].arrow())
        assert pack == 7 and batch.num_rows == rows <= 10_000 and len(content) < 5_000_000
        found[name] += batch.to_pylist()
    assert found == expected
