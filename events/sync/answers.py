"""Defines the values of which sync answers consist. All are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from events.reading.event_json import ServedEvent
from events.tokens.sync_token import SyncToken
from streams.core.tokens import VectorToken

StateKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SyncRoom:
    """A room that the user is in, or has left since the last answer.

    ``timeline`` has the events in topological order in an initial sync, otherwise in stream order. ``limited``: there
    is a gap between the last answer and the timeline, or the timeline leaves out events. For example, a state event may
    come late, after the client received a newer state event at the same key. The late event is left out, together with
    the events before it. ``prev_batch`` is the token for reading backwards from the timeline. ``whole``: the client has
    to discard all data that it has of the room.

    ``state`` is what the client must know besides the timeline: with ``whole`` the full state, otherwise the changes
    since the last answer. At a key that the timeline changes, ``state`` has the entry before the timeline. At any other
    key it has the entry at the timeline's end. ``removed`` are keys that the state no longer has, which a state
    resolution can cause.
    """

    room_id: str
    membership: str
    timeline: tuple[ServedEvent, ...]
    limited: bool
    prev_batch: str | None
    state: tuple[ServedEvent, ...] = ()
    removed: tuple[StateKey, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class PendingRoom:
    """A room that the user is invited to or knocks on.

    ``event`` is the membership event.

    ``stripped_state`` is what a non-member may know of the room: events reduced to type, state_key, content and sender.
    """

    room_id: str
    membership: str
    event: ServedEvent
    stripped_state: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RoomsSince:
    """The rooms of a sync answer, with what is new between two tokens.

    Rooms without news are left out.

    ``upto`` is the position at which this answer ends and the next answer begins.
    """

    joined: tuple[SyncRoom, ...] = ()
    left: tuple[SyncRoom, ...] = ()
    invited: tuple[PendingRoom, ...] = ()
    knocked: tuple[PendingRoom, ...] = ()
    upto: VectorToken | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.invited or self.knocked)


@dataclass(frozen=True, slots=True)
class InitialSync:
    """One page of the first answer to a user: joined rooms, the rooms with the newest activity first.

    Incremental syncs continue from ``token``, which is the same on every page. ``next_page`` is the value of ``after``
    that requests the next page, or None on the last page. The first page also has invites and knocks, and the rooms
    from which the user was kicked or banned (``left``). Rooms that users left themselves are not included.
    """

    rooms: tuple[SyncRoom, ...]
    invited: tuple[PendingRoom, ...]
    knocked: tuple[PendingRoom, ...]
    token: SyncToken
    next_page: str | None
    left: tuple[SyncRoom, ...] = ()
