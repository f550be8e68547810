"""Builds the context of an event's admin page, with a bounded number of queries for any event.

All values are plain text and numbers, and the template escapes them. If a text or a list was shortened, the page says
so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from events.admin.links import EventLink, event_links, page_number, room_url, verdict_words
from events.admin.pretty_json import pretty_json
from events.admin.room_names import room_names
from events.errors import NotCanonical, ReadingError
from events.format.client_format import pruned_json
from events.format.hashes import content_hash_matches
from events.format.strict_json import decode_stored
from events.models import Event, EventEdge, EventJson, EventVisibility, VisibleEvent
from events.reading.event_lines import EventLine, event_lines, sent_at
from events.reading.state_at import StateAt, state_at
from events.visibility.explain import Explanation, explain_visibility
from events.visibility.visibility_words import answer_in_words, reasons_in_words
from state.errors import StateError, UnknownRoomVersion
from state.groups.deltas import StateKey
from state.rules.room_versions import room_version
from streams.runtime.amounts import byte_size
from streams.runtime.text import safe_text

MOST_JSON = 20_000
"""Most characters of JSON on the page. A link leads to the exact bytes."""
_MOST_EDGES = 50
_MOST_RANGES = 50
_STATE_PER_PAGE = 100
_LONGEST_USER = 255
_MOST_VIEWERS = 50


@dataclass(frozen=True, slots=True)
class Text:
    """A text for the page, shortened if it is long."""

    shown: str
    cut: int
    """The number of characters that are left out."""


@dataclass(frozen=True, slots=True)
class Links:
    """The linked events on one side of an event in the graph.

    ``more``: there are more linked events than ``links`` has. ``nothing`` is the text to show if ``links`` is empty.
    """

    title: str
    links: Sequence[EventLink]
    more: bool
    nothing: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a state, or the change of an entry from ``before`` to ``after``."""

    type: str
    state_key: str
    after: EventLink | None
    before: EventLink | None = None
    value: str = ""
    """The content of the event ``after`` in one line."""
    value_before: str = ""


def event_page(event: Event, asked: Mapping[str, str], using: str) -> dict[str, Any]:
    """Returns the template variables of an event's page. ``asked`` has the query parameters ``user`` and ``state_page``."""
    stored = EventJson.objects.using(using).filter(event_id=event.event_id).first()
    content = decode_stored(bytes(stored.json)) if stored is not None else None
    sides = _edges(event, content, using)
    state = _StatePart.read(event, asked.get("state_page"), using)
    of_event = [event_id for event_id in (event.redacted_by, event.redacts, event.relates_to) if event_id is not None]
    links = event_links([*of_event, *(event_id for side in sides for event_id in side[1]), *state.named()], using)
    ranges = EventVisibility.read.using(using).covering(event.room_id, event.stream_ordering)[:_MOST_RANGES]
    for found in ranges:
        found.user_id = safe_text(found.user_id, None)
    return {
        **_about(event, links),
        **_words(event, using),
        **_viewers(event, using),
        **_json_part(event, stored, content),
        "sides": [Links(title, [links[i] for i in ids], more, nothing) for title, ids, more, nothing in sides],
        **state.context(links, event_lines(state.named(), using)),
        "state_open": "state_page" in asked,
        "ranges": list(ranges),
        "ranges_more": _MOST_RANGES,
        **event_user(event, asked.get("user", ""), using),
    }


def _about(event: Event, links: Mapping[str, EventLink]) -> dict[str, Any]:
    return {
        "event": event,
        "title_words": f"{safe_text(event.type, 100)} {safe_text(event.state_key, 100)}".strip(),
        "words": verdict_words(event) or ["accepted"],
        "sent": f"{sent_at(event.origin_server_ts)} ({event.origin_server_ts} ms since 1970)",
        "room_url": room_url(event.room_id),
        "group_url": reverse("admin:state_stategroup_change", args=[event.state_group]) if event.state_group else "",
        "redacted_by": links.get(event.redacted_by or ""),
        "redacts": links.get(event.redacts or ""),
        "relates_to": links.get(event.relates_to or ""),
    }


def _words(event: Event, using: str) -> dict[str, str]:
    event_id, room_id = ("".join(text) for text in (event.event_id, event.room_id))
    line = event_lines([event_id], using).get(event_id)
    return {
        "line": safe_text(line.words if line is not None else "", 400),
        "room_text": room_names([room_id], using)[room_id].text,
    }


def _viewers(event: Event, using: str) -> dict[str, Any]:
    # Only users with a membership in the room's current state, sorted by ID.
    found = VisibleEvent.objects.using(using).filter(event_id="".join(event.event_id)).order_by("user_id")
    users = list(found.values_list("user_id", flat=True)[: _MOST_VIEWERS + 1])
    return {"viewers": [safe_text(user) for user in users[:_MOST_VIEWERS]], "viewers_more": len(users) > _MOST_VIEWERS}


def event_user(event: Event, user: str, using: str) -> dict[str, Any]:
    """Returns the template variables that say in words whether the user may see the event."""
    user = user.strip()
    if not user:
        return {"asked_user": ""}
    if (
        len(user.encode(errors="replace")) > _LONGEST_USER
        or "\0" in user
        or not user.startswith("@")
        or ":" not in user
    ):
        return {
            "asked_user": safe_text(user),
            "user_error": "A user ID looks like @ann:example.org and has at most 255 bytes.",
        }
    (found,) = explain_visibility(user, [event.event_id], using)
    if not isinstance(found, Explanation):
        return {"asked_user": user, "user_error": str(found)}
    return {
        "asked_user": user,
        "answer": answer_in_words(found),
        "seen": found.seen,
        "reasons": reasons_in_words(found),
    }


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json_part(event: Event, stored: EventJson | None, content: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "json": _cut(pretty_json(stored.json)) if stored is not None else None,
        "pruned": _pruned(stored, content),
        "misfit": event.redacted_by is None and _fits_no_hash(stored, content),
        "json_url": reverse("admin:events_event_json", args=[event.pk]),
        "json_size": byte_size(len(stored.json)) if stored is not None else "",
    }


def _fits_no_hash(stored: EventJson | None, content: dict[str, Any] | None) -> bool:
    # it was pruned, by this server or before it arrived
    if stored is None or content is None:
        return False
    try:
        return not content_hash_matches(content, room_version(stored.room_version))
    except (UnknownRoomVersion, NotCanonical):
        return False


def _pruned(stored: EventJson | None, content: dict[str, Any] | None) -> Text | None:
    if stored is None or content is None:
        return None
    try:
        pruned = pruned_json(bytes(stored.json), stored.room_version)
    except UnknownRoomVersion:
        return None
    return _cut(pretty_json(pruned))


def _cut(text: str) -> Text:
    return Text(text[:MOST_JSON], max(len(text) - MOST_JSON, 0))


# --- graph ------------------------------------------------------------------------------------------------------------


def _edges(event: Event, content: dict[str, Any] | None, using: str) -> list[tuple[str, list[str], bool, str]]:
    # (title, event IDs, are there more, text to show if there are none)
    edges = EventEdge.objects.using(using)
    below = edges.filter(event_id=event.event_id).order_by("prev_event_id")
    above = edges.filter(prev_event_id=event.event_id).order_by("event_id")
    auth = _auth_events(content)
    return [
        (
            "Builds on",
            *_first(below.values_list("prev_event_id", flat=True)),
            "nothing: it begins the room, or is an outlier",
        ),
        ("Built on by", *_first(above.values_list("event_id", flat=True)), "nothing yet"),
        ("Auth events", *_first(auth), "none listed"),
    ]


def _first(ids: Any) -> tuple[list[str], bool]:
    found = list(ids[: _MOST_EDGES + 1])
    return found[:_MOST_EDGES], len(found) > _MOST_EDGES


def _auth_events(content: dict[str, Any] | None) -> list[str]:
    # in room versions 1 and 2 each ID comes with a hash
    listed = content.get("auth_events") if content is not None else None
    found = [
        item[0] if isinstance(item, list) and item else item for item in (listed if isinstance(listed, list) else [])
    ]
    return [event_id for event_id in found if isinstance(event_id, str) and "\0" not in event_id]


# --- state ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _StatePart:
    # The state before and after an event, with one page of the state after it; or None and the reason (``trouble``).
    state: StateAt | None
    trouble: str
    page: int = 1
    pages: int = 1
    entries: Sequence[tuple[StateKey, str]] = ()

    @classmethod
    def read(cls, event: Event, asked: str | None, using: str) -> _StatePart:
        try:
            found = state_at(event.event_id, using)
        except (ReadingError, StateError) as error:
            return cls(None, str(error))
        if found.after is None:
            return cls(None, "An outlier has no place in the graph, so no state.")
        pages = max(1, -(-len(found.after) // _STATE_PER_PAGE))
        page = page_number(asked, pages)
        keys = sorted(found.after)[(page - 1) * _STATE_PER_PAGE : page * _STATE_PER_PAGE]
        return cls(found, "", page, pages, [(key, found.after[key]) for key in keys])

    def named(self) -> list[str]:
        changed = [event_id for pair in self.changes.values() for event_id in pair if event_id is not None]
        return [*changed, *(event_id for _, event_id in self.entries)]

    @property
    def changes(self) -> dict[StateKey, tuple[str | None, str | None]]:
        return self.state.changes if self.state is not None else {}

    def context(self, links: Mapping[str, EventLink], lines: Mapping[str, EventLine]) -> dict[str, Any]:
        values = {event_id: safe_text(line.words, 320) for event_id, line in lines.items()}
        return {
            "state": self.state,
            "state_trouble": self.trouble,
            "changes": [_change(key, pair, links, values) for key, pair in sorted(self.changes.items())],
            "entries": [
                Entry(safe_text(key[0]), safe_text(key[1]), links[event_id], value=values.get(event_id, ""))
                for key, event_id in self.entries
            ],
            "entries_count": len(self.state.after or ()) if self.state is not None else 0,
            "state_page": self.page,
            "state_pages": self.pages,
        }


def _change(
    key: StateKey, pair: tuple[str | None, str | None], links: Mapping[str, EventLink], values: Mapping[str, str]
) -> Entry:
    before, after = (links[event_id] if event_id is not None else None for event_id in pair)
    was, value = (values.get(event_id or "", "") for event_id in pair)
    return Entry(safe_text(key[0]), safe_text(key[1]), after, before, value, was)
