"""Parsed events as bytes and back: what the rules of a room need to know of an event, without its text (pure).

An import stages this beside the columns that SQL needs, so a room is read in one column and no field is parsed twice. Only the
job that wrote the bytes reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from events.format.parsing import ParsedEvent

__all__ = ["Unpacker", "pack"]

_NOTHING: Mapping[str, Any] = {}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[ParsedEvent, str | None]).decode


def pack(event: ParsedEvent) -> bytes:
    """The event without room, stream ordering and text."""
    content = json.dumps(event.content) if event.content else None  # integers may be of any size
    return _encode((replace(event, room_id="", stream_ordering=None, json=b"", content=_NOTHING), content))


class Unpacker:
    """Makes events of one room."""

    def __init__(self, room_id: str) -> None:
        self._room_id = room_id

    def unpack(self, packed: bytes, stream_ordering: int | None) -> ParsedEvent:
        """An event that ``pack`` was given, with that stream ordering and no text."""
        event, content = _decode(packed)
        force_setattr(event, "room_id", self._room_id)  # nobody else has it yet
        if stream_ordering is not None:
            force_setattr(event, "stream_ordering", stream_ordering)
        if content is not None:
            force_setattr(event, "content", json.loads(content))
        return event
