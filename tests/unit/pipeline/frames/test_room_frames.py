"""The frames of rooms as one value: one for each table, by name."""

from __future__ import annotations

import pytest

from pipeline.frames.room_frames import RoomFrames
from pipeline.frames.schemas import ROOM_FRAMES


def test_it_has_each_frame_by_its_name_in_their_order():
    frames = RoomFrames.of({name: object() for name in ROOM_FRAMES})
    assert [name for name, _ in frames.items()] == list(ROOM_FRAMES)
    assert all(getattr(frames, name) is frame for name, frame in frames.items())


def test_a_missing_frame_is_named():
    with pytest.raises(ValueError, match="visibility"):
        RoomFrames.of({})
