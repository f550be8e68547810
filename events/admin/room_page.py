"""Builds the context of a room's admin page.

The page shows the room's name, its timeline, current state with values, members, the latest events with what each
builds on, and forward and backward extremities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Count, QuerySet

from events.admin.event_search import newest_in_room
from events.admin.links import EventLink, event_links, link_of, page_number
from events.admin.room_names import HEALTH, health_words, room_names
from events.admin.room_timeline import room_timeline
from events.format.event_words import power_level_tables
from events.models import (
    BackwardExtremity,
    CurrentState,
    Event,
    EventEdge,
    ForwardExtremity,
    Room,
    RoomSummary,
    TimelineGap,
)
from events.reading.event_lines import EventLine, event_lines
from state.rules.room_versions import ROOM_VERSIONS
from streams.runtime.text import safe_text

_LAST_EVENTS = 50
_MOST_EDGES = 2_000
_MOST_LISTED = 50
_ROWS_PER_PAGE = 100
_MEMBER = "m.room.member"
_MEMBERSHIPS = ("join", "invite", "knock", "leave", "ban")
_LEVELS_LISTED = 100
_PREV_LISTED = 5


@dataclass(frozen=True, slots=True)
class LastEvent:
    """One of the latest events. ``more`` is the number of its prev events that are not in ``prev``."""

    link: EventLink
    prev: Sequence[EventLink]
    more: int
    received: Any


@dataclass(frozen=True, slots=True)
class Page:
    rows: Sequence[Any]
    number: int
    pages: int


def room_page(room: Room, asked: Mapping[str, str], using: str) -> dict[str, Any]:
    """Returns the template variables of a room's page.

    ``asked`` has the query parameters ``state_page``, ``members_page`` and ``membership``, and those of
    ``room_timeline``.
    """
    room_id = "".join(room.room_id)  # the characters themselves: the row's text escapes some
    extremities = _some(ForwardExtremity.objects.using(using).filter(room_id=room_id))
    gaps = _some(BackwardExtremity.objects.using(using).filter(room_id=room_id))
    earlier_gaps = TimelineGap.objects.using(using).filter(room_id=room_id).order_by("-stream_ordering")
    state = CurrentState.read.using(using).filter(room_id=room_id)
    members = dict(state.filter(type=_MEMBER).values_list("membership").annotate(users=Count("*")))
    entries, people = state.exclude(type=_MEMBER), state.filter(type=_MEMBER)
    membership = asked.get("membership", "")
    chosen = membership if membership in _MEMBERSHIPS else ""
    if chosen:
        people = people.filter(membership=chosen)
    entry_page = _page(entries.order_by("type", "state_key"), entries.count(), asked.get("state_page"))
    count = members.get(chosen, 0) if chosen else sum(members.values())
    member_page = _page(people.order_by("state_key"), count, asked.get("members_page"))
    levels_id = entries.filter(type="m.room.power_levels", state_key="").values_list("event_id", flat=True).first()
    rows = [row.event_id for row in (*entry_page.rows, *member_page.rows)]
    links = event_links([*extremities, *gaps, *rows, *filter(None, [room.create_event_id])], using)
    loaded = event_lines([*rows, *filter(None, [levels_id, room.create_event_id])], using)
    words = {event_id: safe_text(line.words, 320) for event_id, line in loaded.items()}
    name = room_names([room_id], using)[room_id]
    summary = RoomSummary.objects.using(using).filter(pk=room_id).first()
    health = health_words([room], using)[room_id]
    return {
        "room": room,
        "subtitle": name.text,
        "header_words": name.text,
        "room_name": name,
        "health": health,
        "health_meaning": HEALTH[health],
        "room_summary": summary,
        "room_events": f"{summary.events:,}" if summary is not None else "",
        "create": links.get(room.create_event_id or ""),
        "extremities": [links[event_id] for event_id in extremities[:_MOST_LISTED]],
        "extremities_more": len(extremities) > _MOST_LISTED,
        "gaps": [links[event_id] for event_id in gaps[:_MOST_LISTED]],
        "gaps_more": len(gaps) > _MOST_LISTED,
        "earlier_gaps": list(earlier_gaps[:_MOST_LISTED]),
        "members": sorted(members.items(), key=lambda pair: -pair[1]),
        "membership": chosen,
        "member_page": member_page,
        "member_rows": [
            (safe_text(row.state_key), row.membership or "leave", links[row.event_id], words.get(row.event_id, ""))
            for row in member_page.rows
        ],
        "members_open": "members_page" in asked or bool(chosen),
        "state_page": entry_page,
        "state_rows": [
            (safe_text(row.type), safe_text(row.state_key), words.get(row.event_id, ""), links[row.event_id])
            for row in entry_page.rows
        ],
        "levels": _levels(room, loaded.get(levels_id or ""), loaded.get(room.create_event_id or "")),
        **room_timeline(room_id, asked, using),
        "last_events": _last_events(room_id, set(extremities), using),
    }


def _levels(room: Room, levels: EventLine | None, create: EventLine | None) -> dict[str, Any] | None:
    # From version 12 on the creators of a room outrank all levels, and are listed first.
    content = levels.content if levels is not None else None
    if content is None:
        return None
    tables = power_level_tables(content)
    version = ROOM_VERSIONS.get(room.room_version)
    if version is not None and version.room_id_is_create_hash and create is not None:
        more = (create.content or {}).get("additional_creators")
        creators = [
            create.sender,
            *(user for user in (more if isinstance(more, list) else []) if isinstance(user, str)),
        ]
        tables["users"] = [*((user, "creator, above all levels") for user in dict.fromkeys(creators)), *tables["users"]]
    return {
        name: [(safe_text(key, 120), safe_text(level, 40)) for key, level in rows[:_LEVELS_LISTED]]
        for name, rows in tables.items()
    } | {"more": max(len(rows) - _LEVELS_LISTED for rows in tables.values())}


def _some(rows: QuerySet[Any]) -> list[str]:
    return list(rows.order_by("event_id").values_list("event_id", flat=True)[: _MOST_LISTED + 1])


def _page(rows: QuerySet[Any], count: int, asked: str | None) -> Page:
    pages = max(1, -(-count // _ROWS_PER_PAGE))
    number = page_number(asked, pages)
    return Page(list(rows[(number - 1) * _ROWS_PER_PAGE : number * _ROWS_PER_PAGE]), number, pages)


def _last_events(room_id: str, extremities: set[str], using: str) -> list[LastEvent]:
    # By arrival, not by depth: otherwise a sender could push events out of the list by claiming a large depth.
    events = list(newest_in_room(Event.objects.using(using), room_id)[:_LAST_EVENTS])
    edges: dict[str, list[str]] = {event.event_id: [] for event in events}
    rows = EventEdge.objects.using(using).filter(event_id__in=edges).order_by("event_id", "prev_event_id")
    for event_id, prev in rows.values_list("event_id", "prev_event_id")[:_MOST_EDGES]:
        edges[event_id].append(prev)
    links = event_links((prev for prevs in edges.values() for prev in prevs[:_PREV_LISTED]), using)
    found = []
    for event in events:
        link, prevs = link_of(event), edges[event.event_id]
        if event.event_id in extremities:
            link = replace(link, words=("forward extremity", *link.words))
        listed = [links[prev] for prev in prevs[:_PREV_LISTED]]
        found.append(LastEvent(link, listed, len(prevs) - len(listed), event.received_at))
    return found
