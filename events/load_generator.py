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

from django.db import transaction
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS, event_row
from events.models import Event, EventJson
from events.persist.batch import Incoming, persist
from events.sending.finish import finish_event
from streams.conf import stream_settings

if TYPE_CHECKING:
    from events.format.parsing import ParsedEvent
    from streams.stream_object import Stream

__all__ = ["BackfillLoad", "EventLoad"]

_ROOM_VERSION = "11"


@dataclass(slots=True)
class _Line:
    """The progress of a generator in its room: the number of events, the latest event, and the state after it.

    The next event names ``last_event`` as its prev event, and the events in ``state`` as its auth events. A generator
    replaces its ``_Line`` only after a commit.
    """

    number: int = 0
    last_event: str | None = None
    state: dict[tuple[str, str], str] = field(default_factory=dict)


class EventLoad:
    """A generator of events in one room. The first three events set up the room."""

    def __init__(self, _stream: Stream, thread: int) -> None:
        server = stream_settings().server_name
        self.room_id = f"!load-{thread}-{secrets.token_hex(6)}:{server}"
        self._sender = f"@load-{thread}:{server}"
        self._line = _Line()

    def append(self, count: int) -> list[int]:
        """Appends ``count`` events in one transaction, each with its own ID. Returns the IDs."""
        events, line = self._events(count)
        stored = persist([Incoming(event.json, _ROOM_VERSION) for event in events], verified=True).stored
        self._line = line
        return [event.stream_ordering for event in stored]

    def _events(self, count: int) -> tuple[list[ParsedEvent], _Line]:
        """Returns (the next ``count`` events of the room, the progress after them). Each event is on top of the event before."""
        line = _Line(self._line.number + count, self._line.last_event, dict(self._line.state))
        found: list[ParsedEvent] = []
        for number in range(self._line.number, line.number):
            event = finish_event(self._parts(number, line.last_event, line.state), _ROOM_VERSION)
            line.last_event = event.event_id
            if event.state_key is not None:
                line.state[event.type, event.state_key] = event.event_id
            found.append(event)
        return found, line

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
        """Appends ``count`` events in one transaction, each with its own ID. Returns the IDs."""
        using = stream_settings().database
        events = [self._event() for _ in range(count)]
        texts = [EventJson(event_id=event.event_id, room_version=_ROOM_VERSION, json=event.json) for event in events]
        with transaction.atomic(using=using):
            EventJson.objects.using(using).bulk_create(texts)
            return self._stream.append(*(_fact(replace(event, outlier=True)) for event in events))

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


def _fact(event: ParsedEvent) -> Event:
    return Event(**dict(zip(EVENT_COLUMNS, event_row(event, None, None), strict=True)))
