"""A pack gives back its rows, sorted where that is asked, in batches of bounded size, from memory and from a file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.frames.schemas import ROOM_FRAMES
from pipeline.loading import pack_rows
from pipeline.loading.pack_rows import Pack

SCHEMA = ROOM_FRAMES["event_json"].arrow()
BYTES_PER_ROW = 1_000


def json_rows(numbers, room_id="!a:a.test"):
    return pa.RecordBatch.from_pylist(
        [
            {
                "room_id": room_id,
                "event_id": f"${n * 7919 % 10_007}",
                "room_version": "11",
                "json": bytes(BYTES_PER_ROW),
            }
            for n in numbers
        ],
        schema=SCHEMA,
    )


@pytest.fixture(params=["memory", "file"])
def pack(request, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    monkeypatch.setattr(pack_rows, "BYTES_IN_MEMORY", {"memory": 2**30, "file": 50_000}[request.param])
    pack = Pack()
    for first in range(0, 1_000, 30):
        pack.add("event_json", json_rows(range(first, first + 30), f"!{first // 30 % 2}:a.test"))
    assert list(tmp_path.iterdir()) == []  # a file has no name
    yield pack
    pack.close()


def test_rows_come_back_in_their_order(pack):
    found = [row for batch in pack.batches("event_json") for row in batch.column("event_id").to_pylist()]
    assert found == [f"${n * 7919 % 10_007}" for n in range(1_020)]
    assert list(pack.batches("edges")) == []


def test_sorted_rows_are_copied_some_at_a_time(pack, monkeypatch):
    monkeypatch.setattr(pack_rows, "_BYTES_PER_BATCH", 40 * BYTES_PER_ROW)
    batches = list(pack.sorted_batches("event_json", "event_id"))
    assert max(batch.nbytes for batch in batches) <= 45 * BYTES_PER_ROW
    found = pa.Table.from_batches(batches)
    assert found.column("event_id").to_pylist() == sorted(f"${n * 7919 % 10_007}" for n in range(1_020))
    assert found.num_rows == 1_020 and found.schema == SCHEMA


def test_rooms_left_out_are_in_no_batch(pack):
    pack.without = ["!0:a.test"]
    for batches in (pack.batches("event_json"), pack.sorted_batches("event_json", "event_id")):
        assert pa.Table.from_batches(batches).column("room_id").unique().to_pylist() == ["!1:a.test"]
