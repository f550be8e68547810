"""Holds the frames of rooms in one object. Needs no Django."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

from pipeline.frames.schemas import ROOM_FRAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RoomFrames"]


@dataclass(frozen=True)
class RoomFrames:
    """The rows of some rooms, as one frame for each schema in ``ROOM_FRAMES``."""

    rooms: DataFrame
    events: DataFrame
    event_json: DataFrame
    edges: DataFrame
    auth_edges: DataFrame
    forward_extremities: DataFrame
    backward_extremities: DataFrame
    timeline_gaps: DataFrame
    state_groups: DataFrame
    state_group_deltas: DataFrame
    current_state: DataFrame
    current_state_deltas: DataFrame
    visibility: DataFrame

    @classmethod
    def of(cls, frames: Mapping[str, DataFrame]) -> Self:
        """Returns an object with the given frames. ``frames`` maps the name of each frame to the frame.

        Raises ``ValueError`` if a frame is missing, or has an unknown name.
        """
        if frames.keys() != ROOM_FRAMES.keys():
            raise ValueError(f"the frames of rooms are {', '.join(ROOM_FRAMES)}; given were {', '.join(frames)}")
        return cls(**frames)

    def items(self) -> Iterator[tuple[str, DataFrame]]:
        """Yields (name, frame) of each frame, in the order of ``ROOM_FRAMES``."""
        return ((name, getattr(self, name)) for name in (field.name for field in fields(RoomFrames)))
