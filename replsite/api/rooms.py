"""Serves rooms, events and what users see. Each operation calls a function that a command or a service calls, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.db.models import Count
from ninja import Query, Router
from pydantic import Field

from events.admin.room_list import found_rooms
from events.arguments import can_be_stored
from events.errors import UnknownEvent, UnknownRoom
from events.models import BackwardExtremity, CurrentState, Event, EventEdge, ForwardExtremity, Room, RoomSummary
from events.reading.event_json import load_events
from events.reading.pages import OLDEST, Page, timeline
from events.reading.state_at import State, state_at
from events.visibility.explain import Explanation, explain_visibility
from replsite.api import schemas
from replsite.api.access import needs
from replsite.api.schemas import answers
from streams.conf import stream_settings

router = Router(tags=["Rooms"])
VIEW_ROOMS, VIEW_EVENTS = "events.view_room", "events.view_event"
_MEMBER = "m.room.member"
_MOST_EXTREMITIES = 50
#: ``RoomSummary.active_at`` of a room without accepted events.
_NEVER = datetime.fromtimestamp(0, UTC)
#: Entries of the state that describe a room: type -> (key of the content, name in the answer).
_DESCRIBING = {
    "m.room.name": ("name", "name"),
    "m.room.canonical_alias": ("alias", "canonical_alias"),
    "m.room.topic": ("topic", "topic"),
    "m.room.create": ("type", "room_type"),
    "m.room.join_rules": ("join_rule", "join_rules"),
    "m.room.history_visibility": ("history_visibility", "history_visibility"),
    "m.room.guest_access": ("guest_access", "guest_access"),
    "m.room.encryption": ("algorithm", "encryption"),
}
Limit = Annotated[int, Field(ge=1, le=500)]
From = Annotated[str | None, Query(None, alias="from", description="`next_batch` of the answer before")]
Membership = Literal["join", "invite", "knock", "leave", "ban"]
EventIds = Annotated[list[str], Query(..., min_length=1, max_length=100)]


@router.get("/rooms", response=answers(schemas.RoomList), summary="List rooms")
@needs(VIEW_ROOMS)
def list_rooms(
    request: Any, limit: Limit = 100, start: From = None, search: str | None = None, user_id: str | None = None
) -> dict[str, Any]:
    """Returns rooms, sorted by room ID.

    With `search`, returns only rooms whose name, alias or ID contains this text. With `user_id`, returns only rooms that
    this user has joined.
    """
    using = stream_settings().database
    found = Room.read.using(using)
    if not all(can_be_stored(text) for text in (start or "", search or "", user_id or "")):
        return {"rooms": [], "next_batch": None}
    if user_id is not None:
        joined = CurrentState.read.using(using).rooms_of(user_id)
        found = found.filter(room_id__in=joined.order_by().values("room_id"))
    if search:
        summaries = found_rooms(RoomSummary.objects.using(using), search)
        found = found.filter(room_id__in=summaries.order_by().values("room_id"))
    if start:
        found = found.filter(room_id__gt=start)
    page = list(found.order_by("room_id")[: limit + 1])
    more = page[limit - 1].room_id if len(page) > limit else None
    return {"rooms": _described(page[:limit], using), "next_batch": more}


@router.get("/rooms/{path:room_id}/members", response=answers(schemas.Members), summary="List a room's members")
@needs(VIEW_ROOMS)
def list_members(
    request: Any, room_id: str, membership: Membership = "join", limit: Limit = 100, start: From = None
) -> dict[str, Any]:
    """Returns the users with the membership `membership` in a room's current state, sorted by user ID."""
    room = _room(room_id)
    if not can_be_stored(start or ""):
        return {"members": [], "next_batch": None}
    found = CurrentState.read.using(stream_settings().database).members(room.room_id, membership)
    if start:
        found = found.filter(state_key__gt=start)
    page = list(found.values_list("state_key", "membership", "event_id")[: limit + 1])
    members = [dict(zip(("user_id", "membership", "event_id"), row, strict=True)) for row in page[:limit]]
    return {"members": members, "next_batch": page[limit - 1][0] if len(page) > limit else None}


@router.get("/rooms/{path:room_id}/state", response=answers(schemas.State), summary="Show a room's state")
@needs(VIEW_ROOMS, VIEW_EVENTS)
def show_state(
    request: Any,
    room_id: str,
    at: Annotated[str | None, Query(None, description="an event: the state after it; none: the current state")] = None,
    type: Annotated[str | None, Query(None, description="only entries of this type")] = None,
    limit: Limit = 500,
    start: Annotated[int, Query(0, alias="from", ge=0, le=2**31)] = 0,
) -> dict[str, Any]:
    """Returns the events of a room's state, sorted by type and state key."""
    room, using = _room(room_id), stream_settings().database
    if at is None:
        page, total = _current_entries(room.room_id, type, start, limit + 1, using)
    else:
        if not can_be_stored(at) or not Event.read.using(using).filter(event_id=at, room_id=room.room_id).exists():
            raise UnknownEvent(f"There is no event {at!r:.300} in {room_id}.")
        state = state_at(at, using).after or {}
        entries = [event_id for key, event_id in sorted(state.items()) if type in (None, key[0])]
        page, total = entries[start : start + limit + 1], len(state)
    more = str(start + limit) if len(page) > limit else None
    shown = page[:limit]
    events = load_events(shown, using)
    clients = [events[event_id].client_event() for event_id in shown if event_id in events]
    return {"state": clients, "total": total, "next_batch": more}


@router.get("/rooms/{path:room_id}/messages", response=answers(schemas.Messages), summary="Page through a room")
@needs(VIEW_EVENTS)
def list_messages(
    request: Any, room_id: str, dir: Literal["b", "f"] = "b", limit: Limit = 100, start: From = None
) -> dict[str, Any]:
    """Returns a page of a room's accepted events, newest first (`dir=b`) or oldest first (`dir=f`), for operators.

    Nothing is hidden. For what a user sees, call `/users/{user_id}/rooms/{room_id}/messages`.
    """
    return _messages(room_id, None, dir, limit, start)


@router.get("/rooms/{path:room_id}", response=answers(schemas.RoomDetails), summary="Show a room")
@needs(VIEW_ROOMS)
def show_room(request: Any, room_id: str) -> dict[str, Any]:
    """Returns a room with its numbers of members and its forward and backward extremities."""
    room, using = _room(room_id), stream_settings().database
    state = CurrentState.objects.using(using).filter(room_id=room.room_id, type=_MEMBER)
    (described,) = _described([room], using)
    return {
        **described,
        "create_event_id": room.create_event_id,
        "members": dict(state.order_by().values_list("membership").annotate(users=Count("*"))),
        "forward_extremities": _some(ForwardExtremity.objects.using(using).filter(room_id=room.room_id)),
        "backward_extremities": _some(BackwardExtremity.objects.using(using).filter(room_id=room.room_id)),
        "current_state_unresolved": room.current_state_unresolved,
        "visibility_unresolved": room.visibility_unresolved,
    }


@router.get("/events/{path:event_id}/state", response=answers(schemas.EventState), summary="Show the state at an event")
@needs(VIEW_EVENTS)
def show_state_at(request: Any, event_id: str) -> dict[str, Any]:
    """Returns the state before and after an event, as `manage.py state_at` does."""
    found = state_at(event_id, stream_settings().database)
    return {"before": _entries(found.before), "after": _entries(found.after)}


@router.get("/events/{path:event_id}", response=answers(schemas.EventDetails), summary="Show an event")
@needs(VIEW_EVENTS)
def show_event(request: Any, event_id: str) -> dict[str, Any]:
    """Returns an event with its place in the stream and the room, and the results of event auth."""
    using = stream_settings().database
    served = load_events([event_id], using).get(event_id)
    row = Event.read.using(using).filter(event_id=event_id).first() if served is not None else None
    if served is None or row is None:
        raise UnknownEvent(f"There is no event {event_id!r:.300}.")
    edges = EventEdge.objects.using(using).filter(event_id=event_id).order_by("prev_event_id")
    return {
        "event": served.client_event(),
        **{name: getattr(served, name) for name in ("writer", "stream_ordering", "topological_ordering", "token")},
        **{name: getattr(row, name) for name in ("outlier", "soft_failed", "rejected_reason", "redacted_by")},
        "state_group": row.state_group,
        "prev_events": list(edges.values_list("prev_event_id", flat=True)),
    }


# --- users ------------------------------------------------------------------------------------------------------------


@router.get(
    "/users/{path:user_id}/rooms/{path:room_id}/messages",
    response=answers(schemas.Messages),
    summary="Page through a room as a user",
    tags=["Users"],
)
@needs(VIEW_EVENTS)
def list_messages_of(
    request: Any, user_id: str, room_id: str, dir: Literal["b", "f"] = "b", limit: Limit = 100, start: From = None
) -> dict[str, Any]:
    """Returns a page of the events of a room that the user sees.

    A page may be empty although there are more events. Only a page without an `end` is the last one.
    """
    return _messages(room_id, user_id, dir, limit, start)


@router.get(
    "/users/{path:user_id}/rooms", response=answers(schemas.UserRooms), summary="List a user's rooms", tags=["Users"]
)
@needs(VIEW_ROOMS)
def list_rooms_of(
    request: Any, user_id: str, membership: Membership = "join", limit: Limit = 100, start: From = None
) -> dict[str, Any]:
    """Returns the IDs of the rooms in whose current state the user has the membership `membership`."""
    if not all(can_be_stored(text) for text in (user_id, start or "")):
        return {"rooms": [], "next_batch": None}
    found = CurrentState.read.using(stream_settings().database).rooms_of(user_id, membership)
    page = list(found.filter(room_id__gt=start or "").values_list("room_id", flat=True)[: limit + 1])
    return {"rooms": page[:limit], "next_batch": page[limit - 1] if len(page) > limit else None}


@router.get(
    "/users/{path:user_id}/visibility",
    response=answers(schemas.VisibilityList),
    summary="Explain what a user sees",
    tags=["Users"],
)
@needs(VIEW_EVENTS)
def explain(request: Any, user_id: str, event_id: EventIds) -> dict[str, Any]:
    """Returns for each event whether the user sees it, and by which rule, as `manage.py explain_visibility` does."""
    found = explain_visibility(user_id, event_id, stream_settings().database)
    return {"events": [_explained(asked, answer) for asked, answer in zip(event_id, found, strict=True)]}


# --- alike ------------------------------------------------------------------------------------------------------------


def _room(room_id: str) -> Room:
    using = stream_settings().database
    room = Room.objects.using(using).filter(room_id=room_id).first() if can_be_stored(room_id) else None
    if room is None:
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")
    return room


def _current_entries(room_id: str, type: str | None, start: int, most: int, using: str) -> tuple[list[str], int]:
    """Returns (event IDs of one page of the current state, number of entries of the whole current state).

    The page skips ``start`` entries and has at most ``most``. If ``type`` is given, the page has only entries of this
    type.
    """
    state = CurrentState.read.using(using).filter(room_id=room_id)
    total = state.count()
    if type is not None:
        state = state.filter(type=type) if can_be_stored(type) else state.none()
    found = state.order_by("type", "state_key").values_list("event_id", flat=True)
    return list(found[start : start + most]), total


def _described(found: Sequence[Room], using: str) -> list[dict[str, Any]]:
    """Returns a dictionary with the fields of ``schemas.Room`` for each room, such as the name and topic from its current state.

    One query finds the state events of all these rooms.
    """
    ids = [room.room_id for room in found]
    entries = CurrentState.objects.using(using).filter(room_id__in=ids, type__in=list(_DESCRIBING), state_key="")
    by_room = {(room, kind): event for room, kind, event in entries.values_list("room_id", "type", "event_id")}
    events = load_events(list(by_room.values()), using)
    contents = {
        place: events[event_id].client_event().get("content")
        for place, event_id in by_room.items()
        if event_id in events
    }
    summaries = RoomSummary.objects.using(using).in_bulk(ids)
    nothing = RoomSummary(joined=0, events=0, active_at=_NEVER)  # of a room that is deleted meanwhile
    return [_line(room, contents, summaries.get(room.room_id, nothing)) for room in found]


def _line(room: Room, contents: Mapping[tuple[str, str], Any], summary: RoomSummary) -> dict[str, Any]:
    return {
        "room_id": room.room_id,
        "room_version": room.room_version,
        "creator": room.creator,
        **{name: _text(contents.get((room.room_id, kind)), key) for kind, (key, name) in _DESCRIBING.items()},
        "joined_members": summary.joined,
        "events": summary.events,
        "last_event_at": summary.active_at if summary.active_at > _NEVER else None,
    }


def _text(content: Any, key: str) -> str | None:
    found = content.get(key) if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def _some(rows: Any) -> list[str]:
    return list(rows.order_by("event_id").values_list("event_id", flat=True)[:_MOST_EXTREMITIES])


def _entries(state: State | None) -> list[dict[str, str]] | None:
    if state is None:
        return None
    return [
        {"type": kind, "state_key": state_key, "event_id": event_id}
        for (kind, state_key), event_id in sorted(state.items())
    ]


def _messages(room_id: str, user_id: str | None, way: str, limit: int, start: str | None) -> dict[str, Any]:
    where = {"before": start} if way == "b" else {"after": start or OLDEST}
    page: Page = timeline(room_id, user_id, limit, using=stream_settings().database, **where)
    return {"chunk": [event.client_event() for event in page.events], "start": start, "end": page.end}


def _explained(event_id: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, Explanation):
        return asdict(answer) | {"reachable": answer.reachable, "seen": answer.seen}
    return {"event_id": event_id, "error": "unknown" if isinstance(answer, UnknownEvent) else "unresolved"}
