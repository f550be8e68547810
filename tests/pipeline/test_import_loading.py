"""Loaded rooms are news to whoever cached something of them."""

from __future__ import annotations

import json

import pytest

from events.models import Event
from streams import registry
from streams.catalog.models import CacheInvalidation
from tests.integration.events.cached_topics import membership_of, topic_of
from tests.pipeline.imports import run_import, write_lines
from tests.support.made_rooms import ALICE, public_room
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


def test_loaded_rooms_drop_what_was_cached_of_them(spark, tmp_path):
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
