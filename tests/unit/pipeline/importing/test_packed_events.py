"""What the rules need of an event survives packing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from events.format.parsing import parse_line
from pipeline.importing.packed_events import Unpacker, pack
from tests.support.generated_rooms import forked_rooms
from tests.support.made_rooms import MadeRoom
from tests.support.room_data import ROOM_NAMES, event_lines


def unpacked(event):
    return Unpacker(event.room_id).unpack(pack(event), event.stream_ordering)


def without_text(event):
    return replace(event, json=b"")


@given(forked_rooms())
def test_an_event_comes_back_as_it_was_but_for_its_text(made):
    assert [unpacked(event) for event in made.events] == [without_text(event) for event in made.events]


def test_events_of_real_servers_come_back():
    for name in ROOM_NAMES:
        events = [parse_line(line) for line in event_lines(name)[:200]]
        assert [unpacked(event) for event in events] == [without_text(event) for event in events]


@given(st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")))
def test_content_may_hold_what_old_rooms_allow(value):
    room = MadeRoom()
    event = replace(room.create, content={"x": value})
    assert unpacked(event).content == {"x": value}


def test_stream_orderings_are_those_that_are_told():
    event = replace(MadeRoom().create, stream_ordering=7)
    unpack = Unpacker(event.room_id).unpack
    assert [unpack(pack(event), told).stream_ordering for told in (None, -1, 8)] == [None, -1, 8]
