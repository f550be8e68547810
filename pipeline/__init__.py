"""Bulk and streaming work on Spark.

Executors never import Django. Of the site's other packages they import only modules that do not need Django.

The functions and classes that this package exports are for programs and notebooks, which get events and rows of rooms
as DataFrames (``pipeline.frames``). Each name is imported when it is first used. Only ``load`` needs Django and its
settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.frames.damage import DAMAGE
    from pipeline.frames.differences import DIFFERENCES, differences
    from pipeline.frames.read_events import SourceFrames, read_events
    from pipeline.frames.room_frames import RoomFrames
    from pipeline.frames.schemas import BROKEN_LINES, EVENTS, ROOM_FRAMES, SET_ASIDE, FrameSchema
    from pipeline.frames.stored import KnownKeys, StoredRooms, known_keys, stored_rooms
    from pipeline.frames.work_out_rooms import WorkedOutRooms, work_out_rooms
    from pipeline.loading.load import Loaded, load

__all__ = ["BROKEN_LINES", "DAMAGE", "DIFFERENCES", "EVENTS", "ROOM_FRAMES", "SET_ASIDE"]
__all__ += ["FrameSchema", "KnownKeys", "Loaded", "RoomFrames", "SourceFrames", "StoredRooms", "WorkedOutRooms"]
__all__ += ["differences", "known_keys", "load", "read_events", "stored_rooms", "work_out_rooms"]

#: Name -> the module that has it.
_HOMES = {
    **dict.fromkeys(("BROKEN_LINES", "EVENTS", "ROOM_FRAMES", "SET_ASIDE", "FrameSchema"), "frames.schemas"),
    "RoomFrames": "frames.room_frames",
    "DAMAGE": "frames.damage",
    **dict.fromkeys(("DIFFERENCES", "differences"), "frames.differences"),
    **dict.fromkeys(("SourceFrames", "read_events"), "frames.read_events"),
    **dict.fromkeys(("KnownKeys", "StoredRooms", "known_keys", "stored_rooms"), "frames.stored"),
    **dict.fromkeys(("WorkedOutRooms", "work_out_rooms"), "frames.work_out_rooms"),
    **dict.fromkeys(("Loaded", "load"), "loading.load"),
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"pipeline.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
