"""Serves a user's sync, read-only, as a request that may wait. Calls ``await_sync``, the function that services call, too."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from ninja import Query, Router
from ninja.errors import Throttled

from events.sync.answers import PendingRoom, RoomsSince, SyncRoom
from events.sync.providers import StreamChanges
from events.sync.sync import SyncAnswer, await_sync
from replsite.api import schemas
from replsite.api.access import WaitingTokenAuth, check_again, in_turn, needs
from replsite.api.schemas import answers
from streams.conf import stream_settings

router = Router(tags=["Users"], auth=WaitingTokenAuth())
VIEW_EVENTS = "events.view_event"
_LONGEST_MS = 60_000
#: The most syncs of one user of the API that may wait in this process. There are a hundred places
#: (``replsite.http.request_places``), and one program could otherwise have all of them for a minute, again and again.
MOST_WAITING, _AGAIN_SECONDS = 80, 5
_waiting: Counter[int] = Counter()
Timeout = Annotated[int, Query(0, ge=0, le=_LONGEST_MS, description="milliseconds to wait while nothing is new")]


@router.get("/users/{path:user_id}/sync", response=answers(schemas.Sync), summary="Sync as a user")
@needs(VIEW_EVENTS)
async def sync(
    request: Any,
    user_id: str,
    since: Annotated[str | None, Query(None, description="`next_batch` of the answer before; none: everything")] = None,
    timeout: Timeout = 0,  # noqa: ASYNC109 - its name in Matrix
    limit: Annotated[int, Query(20, ge=1, le=500, description="most events of a room's timeline")] = 20,
) -> dict[str, Any]:
    """Returns the changes for a user since `since`. If there is no change yet, waits for one until `timeout` is over."""
    using, caller = stream_settings().database, request.auth.user_id
    if timeout and _waiting[caller] >= MOST_WAITING:
        raise Throttled(_AGAIN_SECONDS)
    _waiting[caller] += timeout > 0
    try:
        found = await await_sync(user_id, since, timeout / 1000, limit, using, query=in_turn)
    finally:
        _waiting[caller] -= timeout > 0
    if timeout:  # the token may have been revoked while the call waited
        await in_turn(lambda: check_again(request, VIEW_EVENTS))
    return _written(found)


def _written(answer: SyncAnswer) -> dict[str, Any]:
    return {
        "next_batch": answer.next_batch,
        "full": answer.full,
        "rooms": _rooms(answer.rooms),
        "streams": {name: _changes(changes) for name, changes in answer.streams.items()},
    }


def _rooms(found: RoomsSince) -> dict[str, dict[str, Any]]:
    return {
        "join": {room.room_id: _room(room) for room in found.joined},
        "leave": {room.room_id: _room(room) for room in found.left},
        "invite": {room.room_id: {"invite_state": _pending(room)} for room in found.invited},
        "knock": {room.room_id: {"knock_state": _pending(room)} for room in found.knocked},
    }


def _room(room: SyncRoom) -> dict[str, Any]:
    events = [event.client_event() for event in room.timeline]
    return {
        "timeline": {"events": events, "limited": room.limited, "prev_batch": room.prev_batch},
        "state": {"events": [event.client_event() for event in room.state]},
        "removed": [{"type": kind, "state_key": state_key} for kind, state_key in room.removed],
        "whole": room.whole,
    }


def _pending(room: PendingRoom) -> dict[str, Any]:
    return {"events": [*room.stripped_state, room.event.client_event()]}


def _changes(changes: StreamChanges) -> dict[str, Any]:
    return {
        "whole": changes.whole,
        "gone": sorted(list(key) for key in changes.gone),
        "changed": [{"key": list(key), "value": value} for key, value in changes.changed.items()],
    }
