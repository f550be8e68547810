"""Builds the context of a room's admin page.

The page shows the room's name, its timeline, current state with values, members, the latest events as a graph, and
forward and backward extremities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from events.admin.graph_svg import Kind, Node, PictureEvent, draw
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
from streams.runtime.text import shown

__all__ = ["room_page"]

_LAST_EVENTS = 50
_MOST_EDGES = 2_000
_MOST_LISTED = 50
_ROWS_PER_PAGE = 100
_MEMBER = "m.room.member"
_MEMBERSHIPS = ("join", "invite", "knock", "leave", "ban")
_LEVELS_LISTED = 100
_WORDS_WIDTH = 640


@dataclass(frozen=True, slots=True)
class DrawnEvent:
    """A node of the picture, with the link and the words that are shown beside it."""

    node: Node
    link: EventLink
    words: str
    received: Any


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a longer list of rows."""

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
    words = {event_id: shown(line.words, 320) for event_id, line in loaded.items()}
    name = room_names([room_id], using)[room_id]
    health = health_words([room], using)[room_id]
    return {
        "room": room,
        "subtitle": name.text,
        "room_name": name,
        "health": health,
        "health_meaning": HEALTH[health],
        "room_summary": RoomSummary.objects.using(using).filter(pk=room_id).first(),
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
            (shown(row.state_key), row.membership or "leave", links[row.event_id], words.get(row.event_id, ""))
            for row in member_page.rows
        ],
        "members_open": "members_page" in asked or bool(chosen),
        "state_page": entry_page,
        "state_rows": [
            (shown(row.type), shown(row.state_key), words.get(row.event_id, ""), links[row.event_id])
            for row in entry_page.rows
        ],
        "levels": _levels(room, loaded.get(levels_id or ""), loaded.get(room.create_event_id or "")),
        **room_timeline(room_id, asked, using),
        **_picture(room_id, set(extremities), using),
    }


def _levels(room: Room, levels: EventLine | None, create: EventLine | None) -> dict[str, Any] | None:
    """Returns the power levels as tables, or null if the room has no readable power levels.

    From version 12 on the creators of a room outrank all levels, and are listed first.
    """
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
        name: [(shown(key, 120), shown(level, 40)) for key, level in rows[:_LEVELS_LISTED]]
        for name, rows in tables.items()
    } | {"more": max(len(rows) - _LEVELS_LISTED for rows in tables.values())}


def _some(rows: QuerySet[Any]) -> list[str]:
    return list(rows.order_by("event_id").values_list("event_id", flat=True)[: _MOST_LISTED + 1])


def _page(rows: QuerySet[Any], count: int, asked: str | None) -> Page:
    pages = max(1, -(-count // _ROWS_PER_PAGE))
    number = page_number(asked, pages)
    return Page(list(rows[(number - 1) * _ROWS_PER_PAGE : number * _ROWS_PER_PAGE]), number, pages)


def _picture(room_id: str, extremities: set[str], using: str) -> dict[str, Any]:
    """Returns the variables for the graph of the latest events.

    The latest events are chosen by arrival, not by depth. Otherwise a sender could push events out of the picture by
    claiming a large depth.
    """
    events = list(Event.read.using(using).in_room(room_id).order_by("-stream_ordering")[:_LAST_EVENTS])
    by_id = {event.event_id: event for event in events}
    edges: dict[str, list[str]] = {}
    rows = EventEdge.objects.using(using).filter(event_id__in=by_id).order_by("event_id", "prev_event_id")
    for event_id, prev in rows.values_list("event_id", "prev_event_id")[:_MOST_EDGES]:
        edges.setdefault(event_id, []).append(prev)
    outside = {prev for prevs in edges.values() for prev in prevs} - by_id.keys()
    here = set(Event.read.using(using).at(outside).values_list("event_id", flat=True)) if outside else set()
    picture = draw(
        [
            PictureEvent(
                event.event_id,
                edges.get(event.event_id, ()),
                _kind(event),
                (event.topological_ordering, event.stream_ordering),
                event.event_id in extremities,
            )
            for event in events
        ],
        outside - here,
    )
    drawn = [_drawn(node, by_id[node.event.event_id]) for node in picture.nodes]
    return {"picture": picture, "drawn": drawn, "picture_width": picture.words_x + _WORDS_WIDTH}


def _kind(event: Event) -> Kind:
    if event.outlier:
        return Kind.OUTLIER
    if event.rejected_reason is not None:
        return Kind.REJECTED
    if event.soft_failed:
        return Kind.SOFT_FAILED
    return Kind.STATE if event.state_key is not None else Kind.MESSAGE


def _drawn(node: Node, event: Event) -> DrawnEvent:
    """Returns a node with its link and the words beside it.

    The words say everything that is special about the event. So the picture can be read without colours and shapes.
    """
    words = ["forward extremity"] if node.event.is_extremity else []
    words += [word for word in link_of(event).words if word != "backfilled"]
    if node.missing:
        words.append(f"{node.missing} below not here")
    if node.older:
        words.append(f"{node.older} older below")
    key = f" {shown(event.state_key, 32)}" if event.state_key else ""
    link = EventLink(event.event_id, link_of(event).url, f"{shown(event.type, 40)}{key}", (shown(event.sender, 32),))
    return DrawnEvent(node, link, ", ".join(words), event.received_at)
