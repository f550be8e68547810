"""Parsed events as bytes and back: what the rules of a room need to know of an event, without its text (pure).

An import stages this beside the columns that SQL needs, so a room is read in one column and no field is parsed twice. Only the
job that wrote the bytes reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from events.parsing import ParsedEvent

__all__ = ["Unpacker", "pack"]

_PLAIN = (
    *("event_id", "room_version", "type", "state_key", "sender", "depth", "origin_server_ts", "prev_event_ids"),
    *("auth_event_ids", "membership", "redacts", "relates_to", "outlier", "rejected_reason", "soft_failed"),
    *("rejection_given", "soft_failure_given"),
)
_plain = attrgetter(*_PLAIN)
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list).decode
_make: Callable[..., ParsedEvent] = ParsedEvent


def pack(event: ParsedEvent) -> bytes:
    """The event without room, stream ordering and text."""
    content = json.dumps(event.content) if event.content else None  # integers may be of any size
    return _encode((*_plain(event), content))


class Unpacker:
    """Makes events of one room; equal identifiers are one string, so that a large room fits."""

    def __init__(self, room_id: str) -> None:
        self._room_id = room_id
        self._known: dict[str, str] = {}

    def unpack(self, packed: bytes, stream_ordering: int | None) -> ParsedEvent:
        """An event that ``pack`` was given, with that stream ordering and no text."""
        known = self._known.setdefault
        event_id, version, kind, state_key, sender, depth, ts, prevs, auth, *more, content = _decode(packed)
        membership, redacts, relates_to, outlier, rejected_reason, soft_failed, *given = more
        return _make(
            known(event_id, event_id),
            self._room_id,
            known(version, version),
            known(kind, kind),
            None if state_key is None else known(state_key, state_key),
            known(sender, sender),
            depth,
            ts,
            tuple([known(prev, prev) for prev in prevs]),
            tuple([known(other, other) for other in auth]),
            None if membership is None else known(membership, membership),
            redacts,
            relates_to,
            True,  # the content hash was looked at while parsing; the rules of the graph do not ask
            b"",
            {} if content is None else json.loads(content),
            outlier,
            rejected_reason,
            soft_failed,
            stream_ordering,
            *given,
        )
