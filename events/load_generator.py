"""Made-up room history for the load generator: a room per thread, then messages in a line.

The events are real ones (hashed, referring to each other), and every table gets its rows, so the load costs what
storing a local message costs. Each generator has a room of its own, so threads never wait for each other.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import connections
from msgspec.structs import replace

from events.history.rows import EVENT_COLUMNS, event_row
from events.models import (
    CurrentState,
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from events.sending.finish import finish_event
from state.models import StateGroup, StateGroupDelta
from state.store import reserve_group_ids
from streams.conf import stream_settings
from streams.writing.insert import insert_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models import Model

    from events.format.parsing import ParsedEvent
    from streams.stream import Stream

__all__ = ["BackfillLoad", "EventLoad"]

_ROOM_VERSION = "11"


@dataclass(slots=True)
class _Line:
    """Where the room is: what the next event refers to. Changed only when its transaction went well."""

    number: int = 0
    last_event: str | None = None
    state: dict[tuple[str, str], str] = field(default_factory=dict)
    chain: int = 0
    group: int = 0
    """0: there is no state yet."""


def _fact(event: ParsedEvent, group: int | None) -> Event:
    return Event(**dict(zip(EVENT_COLUMNS, event_row(event, None, group), strict=True)))


class EventLoad:
    """Appends the events of one made-up room; the first three set it up."""

    def __init__(self, stream: Stream, thread: int) -> None:
        self._stream = stream
        server = stream_settings().server_name
        self.room_id = f"!load-{thread}-{secrets.token_hex(6)}:{server}"
        self._sender = f"@load-{thread}:{server}"
        self._line = _Line()

    def append(self, count: int) -> list[int]:
        """Append ``count`` events in one transaction, each under its own ID."""
        with self._stream.reserve(count) as reservation:
            connection = connections[stream_settings().database]
            events = self._events(count)
            positions = list(reservation.ids)
            rows, line = self._rows(connection, events, positions)
            reservation.write(*rows.facts, *rows.deltas)
            StateGroup.objects.using(connection.alias).bulk_create(rows.groups)  # keeps the IDs that we chose
            for model, instances in rows.by_model.items():
                insert_facts(connection, model, instances)
            self._move_leaf(connection, events[-1].event_id)
        self._line = line
        return positions

    def _events(self, count: int) -> list[ParsedEvent]:
        """The next events of the room, each on top of the one before."""
        found: list[ParsedEvent] = []
        last, state = self._line.last_event, dict(self._line.state)
        for number in range(self._line.number, self._line.number + count):
            event = finish_event(self._parts(number, last, state), _ROOM_VERSION)
            last = event.event_id
            if event.state_key is not None:
                state[event.type, event.state_key] = event.event_id
            found.append(event)
        return found

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

    def _rows(self, connection: Any, events: Sequence[ParsedEvent], positions: Sequence[int]) -> tuple[_Rows, _Line]:
        """The rows of all other tables, and where the room is afterwards."""
        rows = _Rows()
        before = self._line
        line = _Line(before.number + len(events), events[-1].event_id, dict(before.state), before.chain, before.group)
        new_groups = [event for event in events if event.is_state]
        groups: Iterator[int] = iter(())
        if new_groups:
            with connection.cursor() as cursor:
                groups = iter(reserve_group_ids(cursor, len(new_groups)))
        for event, position in zip(events, positions, strict=True):
            rows.add(EventJson(event_id=event.event_id, room_version=_ROOM_VERSION, json=event.json))
            for prev in event.prev_event_ids:
                rows.add(EventEdge(event_id=event.event_id, prev_event_id=prev))
            if event.is_state:
                rows.add_state(event, position, line, next(groups))
            rows.facts.append(_fact(event, line.group))
        return rows, line

    def _move_leaf(self, connection: Any, event_id: str) -> None:
        """The last event becomes the room's only forward extremity."""
        with connection.cursor() as cursor:
            if self._line.last_event is None:
                insert_facts(connection, ForwardExtremity, [ForwardExtremity(event_id=event_id, room_id=self.room_id)])
            else:
                cursor.execute(
                    "UPDATE events_forwardextremity SET event_id = %s WHERE event_id = %s",
                    [event_id, self._line.last_event],
                )


class BackfillLoad:
    """Appends made-up old events, known by their content only (outliers), to the backward stream."""

    def __init__(self, stream: Stream, thread: int) -> None:
        self._stream = stream
        server = stream_settings().server_name
        self._room_id = f"!load-{thread}-{secrets.token_hex(6)}:{server}"
        self._sender = f"@load-{thread}:{server}"

    def append(self, count: int) -> list[int]:
        """Append ``count`` events in one transaction, each under its own ID."""
        with self._stream.reserve(count) as reservation:
            connection = connections[stream_settings().database]
            events = [self._event() for _ in range(count)]
            reservation.write(*(_fact(replace(event, outlier=True), None) for event in events))
            texts = [
                EventJson(event_id=event.event_id, room_version=_ROOM_VERSION, json=event.json) for event in events
            ]
            insert_facts(connection, EventJson, texts)
            return list(reservation.ids)

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


class _Rows:
    """Rows by table."""

    def __init__(self) -> None:
        self.by_model: dict[type[Model], list[Model]] = {}
        self.groups: list[StateGroup] = []
        self.facts: list[Event] = []
        self.deltas: list[CurrentStateDelta] = []

    def add(self, row: Model) -> None:
        self.by_model.setdefault(type(row), []).append(row)

    def add_state(self, event: ParsedEvent, position: int, line: _Line, group: int) -> None:
        """The rows of a state event; moves the line to its new group."""
        key = (event.type, event.state_key or "")
        previous = line.state.get(key)
        line.state[key] = event.event_id
        line.chain = line.chain or group
        where = {"type": key[0], "state_key": key[1], "event_id": event.event_id}
        size = len(line.state)
        self.groups.append(
            StateGroup(
                id=group,
                room_id=event.room_id,
                prev_group=line.group or None,
                chain=line.chain,
                hops=0,
                keys=size,
                rows_to_read=size,
            )
        )
        line.group = group
        self.add(StateGroupDelta(chain=line.chain, state_group=group, **where))
        self.add(EventAuth(event_id=event.event_id, auth_event_ids=list(event.auth_event_ids)))
        self.add(CurrentState(room_id=event.room_id, membership=event.membership, **where))
        self.deltas.append(
            CurrentStateDelta(stream_ordering=position, room_id=event.room_id, prev_event_id=previous, **where)
        )
        if event.type == "m.room.create":
            self.add(
                Room(
                    room_id=event.room_id,
                    room_version=_ROOM_VERSION,
                    creator=event.sender,
                    create_event_id=event.event_id,
                )
            )
            self.add(EventVisibility(room_id=event.room_id, kind=EventVisibility.Kind.SHARED, first=position))
        elif event.type == "m.room.member":
            joined = EventVisibility.Kind.JOINED
            self.add(EventVisibility(room_id=event.room_id, user_id=event.state_key, kind=joined, first=position))
