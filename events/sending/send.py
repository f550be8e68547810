"""Sends local events: composes and stores them in one transaction.

``create_room`` creates a room, and ``LocalRoom`` sends events into a stored room. The room's row is locked first. Then
``events.sending.compose`` fills in everything that the sender does not give, from the room's present graph and state.
So concurrent senders build on each other's events, and never on the same forward extremities. If the auth rules refuse
an event, ``EventNotAllowed`` is raised with the reason, and nothing is stored.

Inside a transaction of the caller, the room stays locked until that transaction ends. A caller that sends into several
rooms in one transaction has to lock the rooms in the order of their IDs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connections

from events.arguments import can_be_stored
from events.errors import (
    EventNotAllowed,
    EventRefused,
    EventUnreadable,
    Reason,
    StateUnresolved,
    UnknownEvent,
    UnknownRoom,
)
from events.format import hashes
from events.format.parsing import ParsedEvent
from events.format.signatures import SigningKey
from events.format.strict_json import decode_stored
from events.models import CurrentState, Event, EventJson, Room
from events.persist.batch import Incoming, Persisted, persist
from events.persist.lock_and_read import lock_and_read
from events.persist.room_cache import StoredRoom
from events.room.state_assignment import RoomStates
from events.room_lock import room_transaction
from events.sending.compose import MOST_PREV_EVENTS, NewEvent, Place, compose
from state.errors import UnknownRoomVersion
from state.rules.auth_selection import CREATE, JOIN_RULES, POWER_LEVELS
from state.rules.room_versions import RoomVersion, room_version
from streams.conf import stream_settings
from streams.db.snapshots import begins_transaction

__all__ = ["DUMMY_EVENT", "LocalRoom", "NewEvent", "RoomSetup", "create_room"]

DUMMY_EVENT = "org.matrix.dummy_event"
"""The type of events that only merge forward extremities. Clients are never shown them."""
_MOST_DUMMIES = 100
_CANDIDATES = 50
_ATTEMPTS = 100

#: The deepest forward extremities of a room.
_DEEPEST_EXTREMITIES = """
SELECT event_id FROM events_forwardextremity JOIN events_event USING (event_id)
WHERE events_forwardextremity.room_id = %s ORDER BY topological_ordering DESC, stream_ordering DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class RoomSetup:
    """The initial events of a room.

    ``content`` is added to the create event. ``state`` has further state events.

    ``power_levels`` replaces the usual power levels, in which the creator has level 100.
    """

    join_rule: str = "public"
    history_visibility: str = "shared"
    content: Mapping[str, Any] = field(default_factory=dict)
    power_levels: Mapping[str, Any] | None = None
    state: Sequence[NewEvent] = ()


def create_room(
    creator: str,
    version: str = "11",
    setup: RoomSetup | None = None,
    key: SigningKey | None = None,
    using: str | None = None,
) -> LocalRoom:
    """Creates a room to which the creator is joined.

    Returns the room.

    Raises ``EventRefused``, also for an unknown room version, and ``EventNotAllowed``. Nothing is stored then.
    """
    try:
        rules = room_version(version)
    except UnknownRoomVersion as error:
        raise EventRefused(Reason.UNKNOWN_ROOM_VERSION, str(error)) from error
    setup = setup or RoomSetup()
    alias = using or stream_settings().database
    with room_transaction(alias, savepoint=True):
        room = LocalRoom(_store_create_event(creator, rules, setup, key, alias), key, alias)
        room.add(_first_events(creator, rules, setup))
    return room


@dataclass(frozen=True, slots=True)
class LocalRoom:
    """A stored room into which events are sent.

    Without ``key``, users of any server may send. With ``key``, only users of the key's server may send, and the key
    signs their events. Events build on the room's forward extremities, at most the 10 deepest, or on ``prev_event_ids``
    (see ``on``). Events on ``prev_event_ids`` may fork the room. So with ``prev_event_ids``, an event that the current
    state refuses is stored as soft-failed, as if it had come late from another server. All methods that send raise
    ``UnknownRoom``, ``StateUnresolved`` if the state to build on is unknown, ``EventRefused`` and ``EventNotAllowed``.
    """

    room_id: str
    key: SigningKey | None = None
    using: str | None = None
    prev_event_ids: tuple[str, ...] = ()

    def on(self, *events: str | Persisted) -> LocalRoom:
        """Returns a copy that builds its next events on ``events`` (or IDs) instead of the forward extremities."""
        ids = tuple(event if isinstance(event, str) else event.event_id for event in events)
        return replace(self, prev_event_ids=ids)

    def send(self, sender: str, event_type: str, content: Mapping[str, Any]) -> Persisted:
        """Sends a message, or any other event that is not state."""
        return self.add([NewEvent(sender, event_type, content)])[0]

    def set_state(self, sender: str, event_type: str, content: Mapping[str, Any], state_key: str = "") -> Persisted:
        return self.add([NewEvent(sender, event_type, content, state_key)])[0]

    def set_membership(self, sender: str, user: str, membership: str, **content: Any) -> Persisted:
        """``content`` holds further keys, such as ``reason``."""
        return self.set_state(sender, "m.room.member", {**content, "membership": membership}, user)

    def join(self, user: str, **content: Any) -> Persisted:
        return self.set_membership(user, user, "join", **content)

    def knock(self, user: str, **content: Any) -> Persisted:
        return self.set_membership(user, user, "knock", **content)

    def leave(self, user: str, **content: Any) -> Persisted:
        """Lets the user leave, or refuse an invite."""
        return self.set_membership(user, user, "leave", **content)

    def invite(self, sender: str, user: str, **content: Any) -> Persisted:
        return self.set_membership(sender, user, "invite", **content)

    def kick(self, sender: str, user: str, **content: Any) -> Persisted:
        """Lets ``sender`` remove the user, or undo a ban."""
        return self.set_membership(sender, user, "leave", **content)

    def ban(self, sender: str, user: str, **content: Any) -> Persisted:
        return self.set_membership(sender, user, "ban", **content)

    def redact(self, sender: str, event: str | Persisted, reason: str | None = None) -> Persisted:
        target = {"redacts": event if isinstance(event, str) else event.event_id}
        content = {} if reason is None else {"reason": reason}
        alias = self.using or stream_settings().database
        known = Room.objects.using(alias).filter(pk__in=[self.room_id] if can_be_stored(self.room_id) else [])
        name = known.values_list("room_version", flat=True).first()
        if name is not None and room_version(name).newer_redactions:
            return self.add([NewEvent(sender, "m.room.redaction", {**content, **target})])[0]
        return self.add([NewEvent(sender, "m.room.redaction", content, extra=target)])[0]

    def add(self, events: Iterable[NewEvent]) -> list[Persisted]:
        """Sends several events, each on top of the event before, in one transaction. Stores all of them or none."""
        alias = self.using or stream_settings().database
        by_index = begins_transaction(alias)
        with room_transaction(alias, savepoint=True):
            composer = _RoomComposer(self.room_id, self.key, alias, by_index=by_index)
            composer.set_prev_events(self.prev_event_ids or composer.extremities(MOST_PREV_EVENTS))
            composed = [composer.compose(new) for new in events]
            return _stored(composed, alias, late=bool(self.prev_event_ids))

    def merge_extremities(self, more_than: int = MOST_PREV_EVENTS, server: str | None = None) -> list[Persisted]:
        """Merges forward extremities by dummy events, if the room has more than ``more_than`` of them.

        The sender is a joined user of ``server``. The default is the server of ``key``, or else this server. Returns
        the dummy events. If no user of the server may send them, makes none and returns an empty list.
        """
        alias = self.using or stream_settings().database
        server_name = server or (self.key.server if self.key is not None else stream_settings().server_name)
        by_index = begins_transaction(alias)
        with room_transaction(alias, savepoint=True):
            composer = _RoomComposer(self.room_id, self.key, alias, by_index=by_index)
            extremities = composer.extremities(_MOST_DUMMIES * MOST_PREV_EVENTS)
            if len(extremities) <= max(1, more_than):
                return []
            composer.set_prev_events(extremities[:MOST_PREV_EVENTS])
            sender = composer.sender_of(server_name, DUMMY_EVENT)
            if sender is None:
                return []
            return _stored(composer.merge(extremities, NewEvent(sender, DUMMY_EVENT, {}))[:_MOST_DUMMIES], alias)


# --- a new room -------------------------------------------------------------------------------------------------------


def _store_create_event(
    creator: str, version: RoomVersion, setup: RoomSetup, key: SigningKey | None, using: str
) -> str:
    content = {"room_version": version.name, **setup.content}
    if not version.newer_redactions:
        content = {"creator": creator, **content}
    new = NewEvent(creator, "m.room.create", content, "")
    room_id = f"!{secrets.token_urlsafe(18)}:{creator.partition(':')[2]}"
    # In version 12, two rooms that a user creates in the same millisecond would have the same ID.
    for later in range(_ATTEMPTS):
        place = Place(room_id, version, {}, (), _now_ms() + later, secrets.token_urlsafe(18))
        create = compose(new, place, key)
        if Room.objects.using(using).filter(pk=create.room_id).exists():
            continue
        outcome = persist([_incoming(create)], using, verified=True)
        if outcome.refused:
            raise outcome.refused[0].error
        if not outcome.duplicates:  # else another caller has stored the same event in the meantime
            return create.room_id
    raise EventNotAllowed("m.room.create", creator, room_id, "too many rooms were created at once")


def _first_events(creator: str, version: RoomVersion, setup: RoomSetup) -> list[NewEvent]:
    levels = setup.power_levels
    if levels is None:
        levels = {
            "users": {} if version.room_id_is_create_hash else {creator: 100},
            "users_default": 0,
            "events": {},
            "events_default": 0,
            "state_default": 50,
            "ban": 50,
            "kick": 50,
            "redact": 50,
            "invite": 0,
        }
    return [
        NewEvent(creator, "m.room.member", {"membership": "join"}, creator),
        NewEvent(creator, "m.room.power_levels", levels, ""),
        NewEvent(creator, "m.room.join_rules", {"join_rule": setup.join_rule}, ""),
        NewEvent(creator, "m.room.history_visibility", {"history_visibility": setup.history_visibility}, ""),
        *setup.state,
    ]


# --- a stored room ----------------------------------------------------------------------------------------------------


class _RoomComposer:
    """Composes a series of new events for one room, each on top of the event before.

    Locks the room. Assumes that the caller has begun a transaction, in which the caller then stores the events.
    """

    def __init__(self, room_id: str, key: SigningKey | None, using: str, *, by_index: bool) -> None:
        # The lock comes before the forward extremities are read. Without it: A and B both read the extremity X, both build on
        # X, and the room forks.
        reading = lock_and_read([], using, rooms=[room_id] if can_be_stored(room_id) else [], by_index=by_index)
        room = reading.rooms.get(room_id)
        if room is None:
            raise UnknownRoom(f"There is no room {room_id!r:.300}.")
        self._room = room
        self._key = key
        self._using = using
        self._extremities = reading.extremities.get(room_id, [])
        self._stored = StoredRoom(room, using, reading)
        self._states = RoomStates(room_version(room.room_version), [], self._stored.as_stored(room.create_event_id))
        self._prev: list[ParsedEvent] = []
        self._group = -1

    def extremities(self, most: int) -> list[str]:
        # If the room has more than ``most``, or more than 10, the deepest comes first. Otherwise the result has no
        # order.
        if len(self._extremities) <= min(most, MOST_PREV_EVENTS):
            return self._extremities
        with connections[self._using].cursor() as cursor:
            cursor.execute(_DEEPEST_EXTREMITIES, [self._room.room_id, most])
            return [row[0] for row in cursor.fetchall()]

    def set_prev_events(self, event_ids: Sequence[str]) -> None:
        """Raises ``UnknownEvent`` for an event that is not in the room's graph, and ``StateUnresolved``."""
        ids = list(dict.fromkeys(event_ids))
        events = self._stored.events
        events.load([event_id for event_id in ids if can_be_stored(event_id)])
        for event_id in ids:
            found = events.get(event_id) if can_be_stored(event_id) else None
            if found is None or found.outlier or found.room_id != self._room.room_id:
                raise UnknownEvent(f"There is no event {event_id!r:.300} in the graph of {self._room.room_id}.")
        self._stored.adopt_after([event_id for event_id in ids if event_id not in self._stored.after])
        group = self._states.merged(self._stored.after.get(event_id) for event_id in ids)
        if group is None:
            why = "an event to build on lies above a gap" if ids else "only single events of it are here"
            raise StateUnresolved(f"The state of {self._room.room_id} is not known: {why}.")
        self._group = group
        self._prev = [events[event_id] for event_id in ids]

    def compose(self, new: NewEvent) -> ParsedEvent:
        keys = [CREATE, POWER_LEVELS, JOIN_RULES, ("m.room.member", new.sender)]
        replaced = [] if new.state_key is None else [(new.type, new.state_key)]
        self._states.builder.load(self._group, [*keys, *replaced])  # of a large room they are read by key
        event = compose(new, self._place(), self._key)
        self._states.events[event.event_id] = event
        if event.state_key is not None:
            self._group = self._states.builder.add(self._group, {(event.type, event.state_key): event.event_id})
        self._stored.after[event.event_id] = self._group
        self._prev = [event]
        return event

    def merge(self, extremities: Sequence[str], new: NewEvent) -> list[ParsedEvent]:
        # The caller has set the first 10 (the deepest) as prev events. Each new event also builds on the new one
        # before.
        composed = [self.compose(new)]
        rest = list(extremities[MOST_PREV_EVENTS:])
        while rest and len(composed) < _MOST_DUMMIES:
            some, rest = rest[: MOST_PREV_EVENTS - 1], rest[MOST_PREV_EVENTS - 1 :]
            self.set_prev_events([composed[-1].event_id, *some])
            composed.append(self.compose(new))
        return composed

    def sender_of(self, server: str, event_type: str) -> str | None:
        # a joined user of the server who may send an event of that type next
        members = CurrentState.objects.using(self._using).filter(
            room_id=self._room.room_id, type="m.room.member", membership="join", state_key__endswith=f":{server}"
        )
        for user in members.order_by("state_key").values_list("state_key", flat=True)[:_CANDIDATES]:
            try:
                compose(NewEvent(user, event_type, {}), self._place(), self._key)
            except EventNotAllowed:
                continue
            return user
        return None

    def _place(self) -> Place:
        return Place(
            room_id=self._room.room_id,
            version=self._states.version,
            state=self._states.state(self._group),
            prev=self._prev,
            now_ms=_now_ms(),
            opaque=secrets.token_urlsafe(18),
            reference_hash=self._reference_hash,
        )

    def _reference_hash(self, event_id: str) -> str:
        json = self._states.events[event_id].json  # empty for stored events
        if not json:
            json = bytes(EventJson.objects.using(self._using).values_list("json", flat=True).get(pk=event_id))
        if (event := decode_stored(json)) is None:
            raise EventUnreadable(
                f"The stored JSON of {event_id} is damaged, and events on top of it name its hash. Restore it from a backup."
            )
        return hashes.reference_hash(event, self._states.version)


# --- storing ----------------------------------------------------------------------------------------------------------


def _stored(composed: Sequence[ParsedEvent], using: str, *, late: bool = False) -> list[Persisted]:
    # Raises ``EventNotAllowed`` for what is rejected, or soft-failed unless ``late``. The transaction is then rolled
    # back.
    outcome = persist([_incoming(event) for event in composed], using, verified=True)
    if outcome.refused:
        raise outcome.refused[0].error
    found = {stored.event_id: stored for stored in outcome.stored}
    if outcome.duplicates:  # an equal event was sent at the same place in the same millisecond
        columns = ("event_id", "room_id", "stream_ordering", "rejected_reason", "soft_failed")
        rows = Event.objects.using(using).filter(event_id__in=outcome.duplicates).values_list(*columns)
        found |= {row[0]: Persisted(*row) for row in rows}
    for event in composed:
        stored = found[event.event_id]
        reason = stored.rejected_reason or ("the current state forbids it" if stored.soft_failed and not late else None)
        if reason is not None:
            raise EventNotAllowed(event.type, event.sender, event.room_id, reason)
    return [found[event.event_id] for event in composed]


def _incoming(event: ParsedEvent) -> Incoming:
    return Incoming(event.json, event.room_version, event.event_id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
