"""Packs: events come to their pack in any pieces and any order, and those that count leave it room by room."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pipeline.frames import packs as module
from pipeline.frames import room_events
from pipeline.frames.choose_events import Mark
from pipeline.frames.packs import Packs, count_rooms, event_parcels, large_rooms, mark_parcels, shuffled_pack
from pipeline.frames.schemas import EVENTS, SET_ASIDE
from tests.unit.pipeline.frames.test_room_rows import SMALL_ROOMS, batch_of, cut

ROOMS = SMALL_ROOMS[:4]
ONE_PACK = Packs({}, 1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where Spark lets its workers put temporary files."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def in_order():
    """The events of some rooms as a pack gives them."""
    return sorted((row for room in ROOMS for row in batch_of(room).to_pylist()), key=place)


def place(row):
    return row["room_id"], row["stream_ordering"], row["line"]


def batches(rows, size):
    return cut(pa.RecordBatch.from_pylist(rows, schema=EVENTS.arrow()), size)


def chosen(rows, size=7, marks=()):
    """(events set aside, events) of one pack."""
    parcels = list(event_parcels(ONE_PACK)(iter(batches(rows, size))))
    if marks:
        parcels += mark_parcels(ONE_PACK)(iter([marks_of(*marks)]))
    with shuffled_pack(reversed(parcels)) as found:
        if found is None:
            return [], []
        number, pack = found
        assert number == 0
        choice = pack.choose()
        events, aside = list(pack.rows(choice.order)), list(pack.rows(choice.rows_aside))
    assert choice.set_aside.schema == SET_ASIDE.arrow() and all(batch.num_rows <= 2_000 for batch in events)
    names = [name for name in SET_ASIDE.names if name in EVENTS.names]
    assert [row for batch in aside for row in batch.select(names).to_pylist()] == choice.set_aside.select(
        names
    ).to_pylist()
    return choice.set_aside.to_pylist(), [row for batch in events for row in batch.to_pylist()]


def marks_of(*marks):
    return pa.RecordBatch.from_pylist(
        [dict(zip(("room_id", "event_id", "mark"), map(as_text, mark), strict=True)) for mark in marks],
        schema=pa.schema([(name, pa.string()) for name in ("room_id", "event_id", "mark")]),
    )


def as_text(value):
    return None if value is None else str(value)


@pytest.mark.parametrize("in_memory", [True, False])
def test_shuffled_events_are_sorted_whether_the_pack_is_in_memory_or_in_a_file(
    in_order, monkeypatch, folder, in_memory
):
    monkeypatch.setattr(module, "_PARCEL_BYTES", 20_000)
    if not in_memory:
        monkeypatch.setattr(room_events, "BYTES_IN_MEMORY", 20_000)
    shuffled = random.Random(1).sample(in_order, len(in_order))
    assert chosen(shuffled) == ([], in_order) and list(folder.iterdir()) == []


@pytest.mark.parametrize("most", [1, 2**20])
def test_counts_of_rooms_are_added_up_and_small_rooms_are_one_sum(monkeypatch, most):
    monkeypatch.setattr(module, "_PARCEL_BYTES", most)
    rooms = [("!a", "2"), ("!b", "11"), ("!c", "11"), ("!d", "1"), ("!a", "2"), ("!b", "11"), ("!b", "11"), ("!a", "2")]
    batches = [
        pa.RecordBatch.from_pydict(dict(zip(("room_id", "room_version"), zip(*some, strict=True), strict=True)))
        for some in (rooms[:3], rooms[3:])
    ]
    found = [row for batch in large_rooms(count_rooms(batches), 2) for row in batch.to_pylist()]
    assert sorted((row["room_id"] or "", row["events"], row["names_ids"]) for row in found) == [
        ("", 2, True), ("!a", 3, True), ("!b", 3, False),
    ]  # fmt: skip
    assert list(large_rooms((), 2)) == []


def test_parcels_have_the_rows_of_their_pack(in_order):
    large = [("!b", 30_000, False), (in_order[0]["room_id"], 40_000, True), ("!a", 30_000, False)]
    packs = Packs.of([*large, (None, 50_001, False)], 20_000)
    assert (packs.events, packs.names_ids) == (150_001, True)
    assert packs.large == {in_order[0]["room_id"]: 0, "!a": 1, "!b": 2} and len(packs) == 6
    found = {}
    for batch in event_parcels(packs)(iter(batches(in_order, 50))):
        for row in batch.to_pylist():
            read = pa.ipc.read_record_batch(pa.py_buffer(row["content"]), EVENTS.arrow())
            assert not row["marks"]
            found.setdefault(row["pack"], []).extend(read.to_pylist())
    expected = {}
    for row in in_order:
        expected.setdefault(packs.number(row["room_id"]), []).append(row)
    assert {pack: sorted(rows, key=place) for pack, rows in found.items()} == {
        pack: sorted(rows, key=place) for pack, rows in expected.items()
    }
    assert len(found[0]) == sum(row["room_id"] == in_order[0]["room_id"] for row in in_order)


def test_of_copies_the_best_counts(in_order):
    worse = [row | {"outlier": True, "line": 0} for row in in_order[:3]]
    worse += [row | {"content_hash_matches": False, "line": 0} for row in in_order[3:6]]
    worse += [row | {"line": 10_000} for row in in_order[2:9]]
    assert chosen([*worse, *in_order]) == ([], in_order)


def test_events_without_a_position_come_last_in_the_order_of_the_source(in_order):
    room = [row for row in in_order if row["room_id"] == in_order[0]["room_id"]]
    some = [row | {"stream_ordering": None} for row in reversed(room[:5])]
    assert chosen([*some, *room[5:]])[1] == room[5:] + sorted(some, key=lambda row: row["line"])


def test_marks_leave_events_and_rooms_out(in_order):
    one, two, three, four, *rest = [row for row in in_order if row["room_id"] == in_order[0]["room_id"]]
    others = [row for row in in_order if row["room_id"] != one["room_id"]]
    known = others[0]["room_id"]
    outlier = four | {"outlier": True, "line": 20_000}
    marks = [
        (one["room_id"], one["event_id"], Mark.STORED),
        (two["room_id"], two["event_id"], Mark.COPY),
        (three["room_id"], three["event_id"], Mark.COPY),
        (three["room_id"], three["event_id"], Mark.STORED_OUTLIER),
        (four["room_id"], four["event_id"], Mark.STORED_OUTLIER),
        ("!elsewhere", rest[0]["event_id"], Mark.STORED),
        (known, None, Mark.ROOM_STORED),
    ]
    aside, events = chosen([*in_order, outlier], marks=marks)
    assert events == [three, four, *rest, *(row for row in others if row["room_id"] != known)]
    reasons = {(row["event_id"], row["line"]): row["reason"] for row in aside}
    expected = {(row["event_id"], row["line"]): "event-known" for row in (one, outlier)}
    expected[two["event_id"], two["line"]] = "wrong-event-id"
    assert reasons == expected | {
        (row["event_id"], row["line"]): "room-known" for row in others if row["room_id"] == known
    }


def test_marks_without_events_are_nothing():
    assert chosen([], marks=[("!a", None, Mark.ROOM_STORED)]) == ([], [])
