"""Shows stored events to people: who sent them, when, and their content in one line. Pages and terminals escape the text.

Reads the stored bytes unchanged. So an event with damaged JSON is marked as damaged, and other events are shown as
usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from events.arguments import can_be_stored
from events.format.event_words import event_words
from events.format.redaction import prune_content
from events.format.strict_json import decode_stored
from events.models import Event, EventJson
from events.reading.event_json import ServedEvent
from state.errors import UnknownRoomVersion
from state.rules.room_versions import room_version

UNREADABLE = "content cannot be read"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EVENTS_PER_QUERY = 1_000
_COLUMNS = ("event_id", "type", "state_key", "sender", "origin_server_ts", "redacted_by")


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event for people. ``content`` is None if the stored JSON cannot be read."""

    type: str
    state_key: str | None
    sender: str
    sent: str
    content: dict[str, Any] | None

    @property
    def words(self) -> str:
        return UNREADABLE if self.content is None else event_words(self.type, self.content)


def event_lines(event_ids: Iterable[str], using: str) -> dict[str, EventLine]:
    """Returns the stored events of ``event_ids``, by event ID. Content that a redaction removed is left out."""
    wanted = [event_id for event_id in dict.fromkeys(event_ids) if can_be_stored(event_id)]
    found: dict[str, EventLine] = {}
    for start in range(0, len(wanted), _EVENTS_PER_QUERY):
        part = wanted[start : start + _EVENTS_PER_QUERY]
        rows = EventJson.objects.using(using).filter(event_id__in=part).values_list("event_id", "room_version", "json")
        stored = {event_id: (version, bytes(raw)) for event_id, version, raw in rows}
        for event_id, kind, key, sender, ts, redacted_by in (
            Event.objects.using(using).filter(event_id__in=part).values_list(*_COLUMNS)
        ):
            content = _content(*stored[event_id], is_pruned=redacted_by is not None) if event_id in stored else None
            found[event_id] = EventLine(kind, key, sender, sent_at(ts), content)
    return found


def line_of(event: ServedEvent) -> EventLine:
    """Returns the line for an event that was read for a user or server, redacted and pruned as they get it."""
    is_pruned = event.pruned or event.redacted_by is not None
    content = _content(event.room_version, event.json, is_pruned=is_pruned)
    return EventLine(event.type, event.state_key, event.sender, sent_at(event.origin_server_ts), content)


def _content(version: str, raw: bytes, *, is_pruned: bool) -> dict[str, Any] | None:
    event = decode_stored(raw)
    if event is None:
        return None
    content: dict[str, Any] = event["content"]
    try:
        return prune_content(event.get("type"), content, room_version(version)) if is_pruned else content
    except UnknownRoomVersion:
        return None


def sent_at(milliseconds: int) -> str:
    """Returns the time that a sender claims, as text in UTC, or the milliseconds if they fit no date."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=milliseconds):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{milliseconds} ms"
