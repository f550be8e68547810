"""Syncing in tests: where the stream of events is as this transaction sees it, and answers by event IDs."""

from __future__ import annotations

from django.db.models import Max

from events.models import Event
from events.notifier import notifier
from events.sending.send import LocalRoom, NewEvent
from events.sync.rooms import initial_sync, rooms_since
from events.tokens.sync_token import SyncToken
from streams import registry
from streams.core.tokens import VectorToken
from tests.support.waiting import wait_until

ANN = "@ann:site"


def here() -> VectorToken:
    """After everything that is stored; also within a transaction, whose facts no position covers yet."""
    return VectorToken(Event.objects.aggregate(highest=Max("stream_ordering"))["highest"] or 1)


def first(user_id, now=None, **arguments):
    """An initial sync up to here."""
    return initial_sync(user_id, now=SyncToken({"events": now or here()}), **arguments)


def since(user_id, token, now=None, **arguments):
    """The rooms since a position of the stream, up to here."""
    return rooms_since(user_id, token, now or here(), **arguments)


def ids(events):
    """Event IDs of a timeline or of a state."""
    return [event.event_id for event in events]


def only(rooms):
    """The one room of a part of an answer."""
    (room,) = rooms
    return room


def talk(room: LocalRoom, count: int = 1, sender: str = ANN) -> list[str]:
    """So many messages in one transaction; their event IDs."""
    said = room.add([NewEvent(sender, "m.room.message", {"body": str(n)}) for n in range(count)])
    return [event.event_id for event in said]


def by_key(events):
    """The state events among these: (type, state key) -> event ID."""
    return {(event.type, event.state_key): event.event_id for event in events if event.state_key is not None}


class Client:
    """A user's client, as the answers make it: rooms with their state, pending invites and knocks, and the events it saw."""

    def __init__(self, user):
        self.user, self.at = user, None
        self.rooms, self.pending, self.seen = {}, {}, []

    def sync(self, now=None, limit=20):
        """Applies the first answer, or what is new up to ``now``. Returns the answer."""
        now = now or here()
        if self.at is None:
            answer = first(self.user, now, events=limit)
            joined, left = answer.rooms, answer.left
        else:
            answer = since(self.user, self.at, now, limit=limit)
            joined, left = answer.joined, answer.left
        self.at = now
        for room in (*joined, *left):
            self.pending.pop(room.room_id, None)
            self.seen += ids(room.timeline)
        for room in left:
            self.rooms.pop(room.room_id, None)
        for room in joined:
            known = {} if room.whole else self.rooms[room.room_id]
            kept = {key: event_id for key, event_id in known.items() if key not in room.removed}
            self.rooms[room.room_id] = {**kept, **by_key(room.state), **by_key(room.timeline)}
        for room in (*answer.invited, *answer.knocked):
            self.rooms.pop(room.room_id, None)
            self.pending[room.room_id] = room.membership
        return answer


def heard(stream: str = "events") -> None:
    """Wait until the memory has what this process has committed: it comes as that of others does."""
    high = registry.get(stream).current().linear
    wait_until(lambda: (now := notifier.now(stream)) is not None and now.covers(None, high))
