"""Loading when others take IDs meanwhile: the order is the given one all the same."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest

from events.models import Event
from pipeline.importing import load_rooms
from pipeline.importing.spark_tasks import stage_rooms
from pipeline.importing.work_out_rooms import RoomWork
from pipeline.models import Job, JobState
from pipeline.spark.run_tasks import run_tasks
from streams import registry
from streams.catalog.models import CacheInvalidation
from tests.integration.events.cached_topics import membership_of, topic_of
from tests.pipeline.imports import bare_room, content, run_import, write_lines
from tests.support.emptying import empty_tables
from tests.support.made_rooms import ALICE, public_room
from tests.support.room_data import ROOMS
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


def test_ids_with_holes_between_keep_the_order(spark, own_writer, tmp_path, rows, monkeypatch):
    reserve = load_rooms._Batch._reserve

    def with_holes(batch, stream, count):
        return reserve(batch, stream, 2 * count)[::2]

    monkeypatch.setattr(load_rooms._Batch, "_reserve", with_holes)
    mixed = [event for pair in zip(bare_room(1, 30), bare_room(2, 30), strict=True) for event in pair]
    run_import(write_lines(tmp_path / "rooms.jsonl", *({"json": event, "room_version": "2"} for event in mixed)))
    found = rows("SELECT event_id, stream_ordering FROM events_event ORDER BY stream_ordering")
    assert [event_id for event_id, _ in found] == [event["event_id"] for event in mixed]
    assert found[-1][1] - found[0][1] == 2 * (len(mixed) - 1)


def test_rooms_that_are_read_in_chunks_are_what_they_are_as_a_whole(spark, own_writer, monkeypatch):
    files = [ROOMS / name / "events.jsonl.gz" for name in ("v10_gap", "v11_redactions", "v12_power_fork")]
    run_import(*files)
    whole = content()
    empty_tables()
    monkeypatch.setattr("pipeline.importing.job.RoomWork", partial(RoomWork, chunk=50))
    run_import(*files)
    assert content() == whole and whole["visibility"]


def test_loaded_rooms_drop_what_was_cached_of_them(spark, own_writer, tmp_path):
    """A function that depends on a room's state was asked before the room was there."""
    rooms = [public_room(room_id=f"!made{n}:a.test") for n in range(2)]
    rooms[0].topic("imported")
    assert [topic_of(room.room_id) for room in rooms] == [None, None]
    assert membership_of(rooms[0].room_id, ALICE) is None
    lines = [{"json": json.loads(event.json), "room_version": "10"} for room in rooms for event in room.events]
    run_import(write_lines(tmp_path / "rooms.jsonl", *lines))
    position = Event.objects.filter(stream_ordering__gt=0).latest("stream_ordering").stream_ordering
    registry.get("events").wait_for(position, DEADLINE_SECONDS)
    assert [topic_of(room.room_id) for room in rooms] == ["imported", None]
    assert membership_of(rooms[0].room_id, ALICE) == "join"
    keys = CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", "keys")
    assert list(keys) == [("cs_cache_fake", [room.room_id, ALICE]) for room in rooms]


def test_a_loader_that_fails_ends_what_spark_is_at(spark, own_writer, tmp_path, monkeypatch):
    def fail(*_):
        raise ArithmeticError("a loader's own words")

    def and_more(session, work, packs):
        stage_rooms(session, work, packs)
        run_tasks(session, 1, lambda _: str(time.sleep(120)))

    monkeypatch.setattr("pipeline.importing.loaders.load_batch", fail)
    monkeypatch.setattr("pipeline.importing.job.stage_rooms", and_more)
    path = write_lines(tmp_path / "rooms.jsonl", *({"json": e, "room_version": "2"} for e in bare_room(1, 5)))
    begun = time.monotonic()
    with pytest.raises(ArithmeticError, match="own words"):
        run_import(path, events_per_batch=1)
    assert time.monotonic() - begun < 90
    assert Job.objects.get().state == JobState.FAILED
    monkeypatch.undo()
    assert run_import(path, resume=True).imported == 5
