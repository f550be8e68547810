"""What sync answers are made of: plain values, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from events.reading.event_json import ServedEvent
from events.tokens.sync_token import SyncToken
from streams.core.tokens import VectorToken

__all__ = ["InitialSync", "NewEvents", "PendingRoom", "RoomsSince", "SyncRoom"]

StateKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SyncRoom:
    """A room that the user is in, or has left since the last answer.

    ``timeline``: events in the order of a room's pages (topological) in an initial sync, in stream order else; an event's
    ``stream_ordering``, ``writer`` and ``topological_ordering`` let whoever wants bring them into the other order.
    ``limited``: there are events between the last answer and the timeline that are not in it, or a gap; ``prev_batch`` is
    where to read on backwards. ``whole``: the room is told from the beginning, whatever was told of it before has no use.

    ``state`` is what a client has to know beside the timeline: with ``whole`` all of the state, else what changed since the
    last answer. At a key that the timeline changes it is the value before the timeline, at any other one the value at its
    end. ``removed`` are keys that are no longer in the state at all (a resolution can take them out).
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
    """A room that the user is invited to or knocks on: the membership event, and what a stranger may know of the room.

    ``stripped_state``: events cut down to type, state_key, content and sender.
    """

    room_id: str
    membership: str
    event: ServedEvent
    stripped_state: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RoomsSince:
    """The part of a sync about rooms: what is new between two tokens. Rooms without anything new are left out.

    ``upto`` is where the answer ends and the next one begins.
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
    """One page of the first answer to a user: joined rooms, those with the newest activity first.

    ``token`` is where incremental syncs go on, the same on every page. ``next_page`` asks for the next rooms (``after``);
    null: these are the last. Invites and knocks come with the first page, and so do the rooms that the user was put out of,
    kicked or banned (``left``); those that they left by themselves are not told.
    """

    rooms: tuple[SyncRoom, ...]
    invited: tuple[PendingRoom, ...]
    knocked: tuple[PendingRoom, ...]
    token: SyncToken
    next_page: str | None
    left: tuple[SyncRoom, ...] = ()


@dataclass(frozen=True, slots=True)
class NewEvents:
    """New events for a user in stream order, and where to go on. ``more``: the limit cut them, ask again at once."""

    events: tuple[ServedEvent, ...]
    token: VectorToken
    more: bool
