"""Searches events by part of an event ID, sender, type, room, and a range of times of reception.

Only IDs, rooms and positions have indexes. So a search examines a bounded number of events, the newest first. The page
of results has a link that continues the search below the last examined event. The search converts times to positions,
because live events have positions nearly in the order of reception.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.db import connections
from django.db.models import QuerySet

from events.admin.links import event_url, room_url, verdict_words
from events.admin.room_names import room_names
from events.arguments import can_be_stored
from events.models import Event
from events.reading.event_lines import event_lines
from streams import registry
from streams.db.consistent_read import read_only_snapshot
from streams.reading.positions_by_time import CLOCK_SKEW, position_before
from streams.runtime.moments import FORMS, moment_of
from streams.runtime.text import safe_text

EVENTS_PER_PAGE = 50
EVENTS_EXAMINED = 100_000
"""The most events that one search examines."""
_NAMES = ("event", "sender", "type", "room", "since", "until", "before")
_LARGEST = 2**63 - 1
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC) - CLOCK_SKEW


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """One event of the result, as safe text."""

    url: str
    event_id: str
    type: str
    state_key: str
    sender: str
    room: str
    room_url: str
    text: str
    received: str
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Query:
    # Only events below the stream position ``below`` are examined.
    event: str
    sender: str
    type: str
    room: str
    since: datetime | None
    until: datetime | None
    below: int
    using: str

    def matching(self, events: QuerySet[Event]) -> QuerySet[Event]:
        # The event ID, the room and the stream position are not checked here.
        if self.sender:
            events = events.filter(sender__startswith=self.sender)
        if self.type:
            events = events.filter(type__startswith=self.type)
        if self.since is not None:
            events = events.filter(received_at__gte=self.since)
        return events if self.until is None else events.filter(received_at__lt=self.until)


class _Unusable(ValueError):
    """A query parameter that cannot be understood. The error's message says what to write instead."""


def event_search(asked: Mapping[str, str], using: str) -> dict[str, Any]:
    """Returns the template variables of the search page.

    ``asked`` has the query parameters ``_NAMES``; all are optional.

    ``event`` is the beginning or another part of an event ID. ``sender`` and ``type`` are the beginnings of a sender
    and of an event type. ``since`` and ``until`` are times of reception in UTC. ``before`` is a stream position: only
    events below it are examined.
    """
    given = {name: asked.get(name, "").strip() for name in _NAMES}
    context: dict[str, Any] = {"asked": {name: safe_text(text, 300) for name, text in given.items()}}
    if not any(given[name] for name in _NAMES):
        return context | {"found": None}
    try:
        with read_only_snapshot(using):
            return context | _search(_checked(given, using), given)
    except _Unusable as error:
        return context | {"found": None, "search_error": str(error)}


def _checked(given: Mapping[str, str], using: str) -> _Query:
    for name in ("event", "sender", "type", "room"):
        if not can_be_stored(given[name]):
            raise _Unusable(f"The {name} has at most 255 bytes, and no NUL.")
    before = given["before"].removeprefix("-")
    if before and not (before.isascii() and before.isdigit() and len(before) < 20 and int(before) <= _LARGEST):
        raise _Unusable("A position is a whole number.")
    since, until = (_moment(name, given[name]) for name in ("since", "until"))
    below = int(given["before"]) if before else _LARGEST
    return _Query(given["event"], given["sender"], given["type"], given["room"], since, until, below, using)


def _moment(name: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = moment_of(text, time.time_ns() // 1_000_000)
    except ValueError:
        raise _Unusable(f"{name}: write {FORMS}.") from None
    return min(found, _LAST_MOMENT)


def _search(query: _Query, given: Mapping[str, str]) -> dict[str, Any]:
    if query.event and not given["before"]:
        prefix = query.event if query.event.startswith("$") else f"${query.event}"
        events = Event.objects.using(query.using).filter(event_id__startswith=prefix)
        if query.room:
            events = events.filter(room_id=query.room)
        # In room versions 1 and 2 an ID may also begin otherwise, and all IDs have an index by code point.
        found = list(query.matching(events).order_by("event_id")[:EVENTS_PER_PAGE])
        if found:
            return {"found": _rows(found, query.using), "examined_all": True}
    return _examine(query, given)


def newest_in_room(events: QuerySet[Event], room_id: str) -> QuerySet[Event]:
    """Returns the room's events among these, the newest first, by the index on (room, position)."""
    # With ``room_id = …`` PostgreSQL would walk along the positions of all rooms where it expects the room to have many events. A
    # large room that has been quiet since would take longer with each event of other rooms.
    return events.filter(room_id__range=(room_id, room_id)).order_by("-room_id", "-stream_ordering")


def _examine(query: _Query, given: Mapping[str, str]) -> dict[str, Any]:
    # the newest first, until the page is full or ``EVENTS_EXAMINED`` are examined
    events: QuerySet[Event] = Event.objects.using(query.using).order_by("-stream_ordering")
    if query.room:
        events = newest_in_room(events, query.room)
    below = query.below
    if query.until is not None and below > 0:
        with connections[query.using].cursor() as cursor:
            declaration = registry.get("events").declaration
            below = min(below, position_before(cursor, declaration, query.until + CLOCK_SKEW) + 1)
    examined = events.filter(stream_ordering__lt=below)
    last = examined.values_list("stream_ordering", flat=True)[EVENTS_EXAMINED : EVENTS_EXAMINED + 1].first()
    if last is not None:
        examined = examined.filter(stream_ordering__gt=last)
    matching = query.matching(examined)
    if query.event:
        matching = matching.filter(event_id__contains=query.event)
    found = list(matching[: EVENTS_PER_PAGE + 1])
    is_full = len(found) > EVENTS_PER_PAGE
    found = found[:EVENTS_PER_PAGE]
    end = found[-1].stream_ordering if is_full else None if last is None else last + 1
    names = {name: text for name, text in given.items() if text}
    return {
        "found": _rows(found, query.using),
        "older": "" if end is None else urlencode(names | {"before": end}),
        "examined": f"{EVENTS_EXAMINED:,}" if last is not None and not is_full else "",
    }


def _rows(events: Sequence[Event], using: str) -> list[FoundEvent]:
    lines = event_lines([event.event_id for event in events], using)
    names = room_names({event.room_id for event in events}, using)
    return [
        FoundEvent(
            url=event_url(event.stream_ordering),
            event_id=safe_text(event.event_id, 260),
            type=safe_text(event.type, 80),
            state_key=safe_text(event.state_key, 80),
            sender=safe_text(event.sender, 120),
            room=names[event.room_id].text,
            room_url=room_url(event.room_id),
            text=safe_text(lines[event.event_id].words if event.event_id in lines else "", 320),
            received=f"{event.received_at:%Y-%m-%d %H:%M:%S}",
            words=verdict_words(event),
        )
        for event in events
    ]
