"""Generates room history for the load generator: one room for each thread, then messages in a chain.

``EventLoad`` stores its events with ``persist``, so the load costs as much as storing local messages. Each generator
has its own room, so threads never wait for each other's locks. A load has exactly the requested number of events,
including those that set up the room. So ``events.sending.send.create_room``, which stores several events at once,
cannot be used.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS, event_row
from events.models import Event
from events.persist.batch import Incoming, persist
from events.rows import RoomRows, write
from events.sending.finish import finish_event
from streams.conf import stream_settings

if TYPE_CHECKING:
    from events.format.parsing import ParsedEvent
    from streams.stream_object import Stream

_ROOM_VERSION = "11"


@dataclass(slots=True)
class _Progress:
    # Replaced only after a commit. ``last_event`` is the next prev event, ``state`` has the next auth events.
    number: int = 0
    last_event: str | None = None
    state: dict[tuple[str, str], str] = field(default_factory=dict)


class EventLoad:
    """A generator of events in one room. The first three set up the room."""

    def __init__(self, _stream: Stream, thread: int) -> None:
        server = stream_settings().server_name
        self.room_id = f"!load-{thread}-{secrets.token_hex(6)}:{server}"
        self._sender = f"@load-{thread}:{server}"
        self._progress = _Progress()

    def append(self, count: int) -> list[int]:
        events, progress = self._events(count)
        stored = persist([Incoming(event.json, _ROOM_VERSION) for event in events], verified=True).stored
        self._progress = progress
        return [event.stream_ordering for event in stored]

    def _events(self, count: int) -> tuple[list[ParsedEvent], _Progress]:
        progress = _Progress(self._progress.number + count, self._progress.last_event, dict(self._progress.state))
        found: list[ParsedEvent] = []
        for number in range(self._progress.number, progress.number):
            event = finish_event(self._parts(number, progress.last_event, progress.state), _ROOM_VERSION)
            progress.last_event = event.event_id
            if event.state_key is not None:
                progress.state[event.type, event.state_key] = event.event_id
            found.append(event)
        return found, progress

    def _parts(self, number: int, last: str | None, state: dict[tuple[str, str], str]) -> dict[str, Any]:
        set_up: list[tuple[str, str, dict[str, Any]]] = [
            ("m.room.create", "", {"room_version": _ROOM_VERSION}),
            ("m.room.member", self._sender, {"membership": "join"}),
            ("m.room.power_levels", "", {"users": {self._sender: 100}}),
        ]
        parts: dict[str, Any] = {
            "room_id": self.room_id,
            "sender": self._sender,
            "origin_server_ts": time.time_ns() // 1_000_000,
            "depth": number + 1,
            "prev_events": [last] if last is not None else [],
            "auth_events": list(state.values()),
        }
        if number < len(set_up):
            parts["type"], parts["state_key"], parts["content"] = set_up[number]
        else:
            parts |= {"type": "m.room.message", "content": {"msgtype": "m.text", "body": f"message {number}"}}
        return parts


class BackfillLoad:
    """A generator of old events in the stream ``backfill``. They are outliers."""

    def __init__(self, stream: Stream, thread: int) -> None:
        self._stream = stream
        server = stream_settings().server_name
        self._room_id = f"!load-{thread}-{secrets.token_hex(6)}:{server}"
        self._sender = f"@load-{thread}:{server}"

    def append(self, count: int) -> list[int]:
        using = stream_settings().database
        events = [self._event() for _ in range(count)]
        texts = RoomRows()
        for event in events:
            texts.add("events_eventjson", event.event_id, _ROOM_VERSION, event.json)
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            write(cursor, texts)
            rows = [event_row(replace(event, outlier=True), None, None) for event in events]
            return self._stream.append(*(Event(**dict(zip(EVENT_COLUMNS, row, strict=True))) for row in rows))

    def _event(self) -> ParsedEvent:
        return finish_event(
            {
                "room_id": self._room_id,
                "sender": self._sender,
                "origin_server_ts": time.time_ns() // 1_000_000,
                "depth": 1,
                "prev_events": [],
                "auth_events": [],
                "type": "m.room.message",
                "content": {"msgtype": "m.text", "body": secrets.token_hex(8)},
            },
            _ROOM_VERSION,
        )
