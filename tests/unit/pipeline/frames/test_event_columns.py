"""Events as columns: what goes in comes out, and a part of a source comes in bounded batches."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from msgspec.structs import replace

from pipeline.frames.event_columns import event_arrays, parsed_events
from pipeline.frames.parse_lines import LineRules, parse_lines
from pipeline.frames.read_events import Reading, part_batches
from pipeline.frames.schemas import EVENTS
from pipeline.frames.sources.lines import parts_of
from pipeline.frames.sources.parts import Line
from tests.support.room_data import ROOM_NAMES, event_lines


def batch_of(events):
    arrays = event_arrays(events)
    places = {"source": pa.array([0] * len(events), pa.int64()), "line": pa.array(range(len(events)), pa.int64())}
    return pa.RecordBatch.from_arrays([(places | arrays)[name] for name in EVENTS.names], schema=EVENTS.arrow())


def events_of(room):
    lines = [Line(n, line) for n, line in enumerate(event_lines(room), 1)]
    return [event for _, event in parse_lines(lines, LineRules())]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_events_come_out_as_they_went_in_without_their_json(room):
    events = events_of(room)
    batch = batch_of(events)
    assert parsed_events(batch) == [replace(event, json=b"") for event in events]
    assert batch.column("json").to_pylist() == [event.json for event in events]


def test_content_keeps_large_numbers_and_odd_characters():
    (event,) = events_of("v9_restricted")[:1]
    odd = replace(event, content={"n": 2**70, "s": "\ud800\0", "list": [None, 1.5]})
    assert parsed_events(batch_of([odd]))[0].content == odd.content


def test_a_given_stream_ordering_is_that_of_all():
    events = events_of("v9_restricted")[:5]
    assert {event.stream_ordering for event in parsed_events(batch_of(events), -1)} == {-1}


def test_no_events_are_no_events():
    assert parsed_events(batch_of([])) == []


def test_batches_are_bounded_in_rows_and_in_bytes(tmp_path):
    large = {"type": "m.room.message", "content": {"body": "x" * 60_000}}
    event = json.loads(event_lines("v9_restricted")[5])
    lines = [json.dumps({"json": event["json"] | large, "room_version": "9"}).encode()] * 100 + [b"?"] * 5_000
    path = tmp_path / "in"
    path.write_bytes(b"\n".join(lines))
    reading = Reading(parts_of(3, path, 1 << 30), [7], LineRules())
    batches = list(part_batches(reading, 0))
    rows = [row for batch in batches for row in batch.select(["source", "line", "reason", "name"]).to_pylist()]
    assert [row["line"] for row in rows] == list(range(8, 5108)) and {row["source"] for row in rows} == {3}
    assert [row["reason"] for row in rows] == [None] * 100 + ["not-json"] * 5_000
    assert {row["name"] for row in rows[:100]} == {None} and rows[-1]["name"] == str(path)
    assert max(batch.num_rows for batch in batches) <= 2_000 and max(batch.nbytes for batch in batches) < 5_000_000
