"""Encodes parsed events as bytes, with all fields that the rules of a room read, but without the JSON (pure).

An import stores these bytes in a column of the staging table of events. Other columns hold the fields that SQL needs.
So the events of a room are read from one column, and no event is parsed twice. Only the job that wrote the bytes reads
these bytes.
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
    """Returns the event as bytes, without room ID, stream ordering and JSON."""
    content = json.dumps(event.content) if event.content else None  # as JSON: msgpack's integers end at 64 bits
    return _encode((replace(event, room_id="", stream_ordering=None, json=b"", content=_NOTHING), content))


class Unpacker:
    """Decoder of the packed events of one room."""

    def __init__(self, room_id: str) -> None:
        self._room_id = room_id

    def unpack(self, packed: bytes, stream_ordering: int | None) -> ParsedEvent:
        """Decodes an event that ``pack`` encoded.

        The event gets the decoder's room ID and the given stream ordering. Its JSON is empty.
        """
        event, content = _decode(packed)
        # Events are frozen. Setting fields is safe here, because no other code has this object yet.
        force_setattr(event, "room_id", self._room_id)
        if stream_ordering is not None:
            force_setattr(event, "stream_ordering", stream_ordering)
        if content is not None:
            force_setattr(event, "content", json.loads(content))
        return event
