"""The usual questions to rooms, events, current state and visibility, for whoever imports the models.

Each of them walks an index; questions that would not are not here. What a user may see is ``events.reading.pages.timeline`` and
the view ``VisibleEvent``, not a filter on these tables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db.models import F, Q

from streams.models.read_only import ReadOnlyQuerySet

if TYPE_CHECKING:
    from events.models import CurrentState, Event, EventVisibility, Room  # noqa: F401 - the names stand in strings

__all__ = ["CurrentStateQuerySet", "EventQuerySet", "EventVisibilityQuerySet", "RoomQuerySet"]

_MEMBER = "m.room.member"


def _table(name: str) -> Any:
    return apps.get_model("events", name)


class RoomQuerySet(ReadOnlyQuerySet["Room"]):
    """Rooms; indexed by room ID."""

    def of_user(self, user_id: str, membership: str = "join") -> RoomQuerySet:
        """Rooms in which the user has that membership now."""
        return self.filter(room_id__in=_table("CurrentState").read.rooms_of(user_id, membership).values("room_id"))

    def with_gaps(self) -> RoomQuerySet:
        """Rooms that refer to events which are not here."""
        return self.filter(room_id__in=_table("BackwardExtremity").objects.values("room_id"))


class EventQuerySet(ReadOnlyQuerySet["Event"]):
    """Events; indexed by stream ordering, event ID, (room, topological, stream), (room, stream), state group and redacts."""

    def in_room(self, room_id: str) -> EventQuerySet:
        """All events of a room that are stored, whatever became of them."""
        return self.filter(room_id=room_id)

    def accepted(self) -> EventQuerySet:
        """Those that clients may be shown: neither outlier nor rejected nor soft-failed."""
        return self.filter(outlier=False, soft_failed=False, rejected_reason=None)

    def newest_first(self) -> EventQuerySet:
        """In the order in which a room is paged, going back."""
        return self.order_by("-topological_ordering", "-stream_ordering")

    def state_events(self, *types: str) -> EventQuerySet:
        """State events, of these types if there are any; ask within a room."""
        found = self.filter(state_key__isnull=False)
        return found.filter(type__in=types) if types else found

    def at(self, event_ids: Collection[str]) -> EventQuerySet:
        """These events, by their IDs."""
        return self.filter(event_id__in=list(event_ids))

    def after(self, position: int, upto: int | None = None) -> EventQuerySet:
        """Events that arrived after this stream position, up to the other one, in the order of arrival."""
        found = self.filter(stream_ordering__gt=position)
        return (found if upto is None else found.filter(stream_ordering__lte=upto)).order_by("stream_ordering")

    def prev_events_of(self, event_id: str) -> EventQuerySet:
        """The stored events that an event refers to as its prev events."""
        edges = _table("EventEdge").objects.filter(event_id=event_id)
        return self.filter(event_id__in=edges.values("prev_event_id"))

    def next_events_of(self, event_id: str) -> EventQuerySet:
        """The events that name an event among their prev events."""
        edges = _table("EventEdge").objects.filter(prev_event_id=event_id)
        return self.filter(event_id__in=edges.values("event_id"))

    def leaves_of(self, room_id: str) -> EventQuerySet:
        """The forward extremities of a room."""
        return self.filter(event_id__in=_table("ForwardExtremity").objects.filter(room_id=room_id).values("event_id"))

    def with_state_of(self, state_group: int) -> EventQuerySet:
        """Events whose state is that group."""
        return self.filter(state_group=state_group).order_by("stream_ordering")


class CurrentStateQuerySet(ReadOnlyQuerySet["CurrentState"]):
    """Entries of rooms' current state; indexed by (room, type, state key), and members by (user, membership, room)."""

    def in_room(self, room_id: str, *types: str) -> CurrentStateQuerySet:
        """The current state of a room, of these types if there are any."""
        found = self.filter(room_id=room_id, **({"type__in": types} if types else {}))
        return found.order_by("type", "state_key")

    def members(self, room_id: str, membership: str = "join") -> CurrentStateQuerySet:
        """The users with that membership in a room, in ``state_key``."""
        return self.filter(room_id=room_id, type=_MEMBER, membership=membership).order_by("state_key")

    def rooms_of(self, user_id: str, membership: str = "join") -> CurrentStateQuerySet:
        """The user's membership entries of that kind, one a room."""
        return self.filter(type=_MEMBER, state_key=user_id, membership=membership).order_by("room_id")

    def as_state(self, room_id: str) -> dict[tuple[str, str], str]:
        """The current state of a room as ``(type, state_key) -> event_id``."""
        rows = self.filter(room_id=room_id).values_list("type", "state_key", "event_id")
        return {(event_type, state_key): event_id for event_type, state_key, event_id in rows}


class EventVisibilityQuerySet(ReadOnlyQuerySet["EventVisibility"]):
    """Ranges of visibility; indexed by (room, user, kind, first) and (user, room, kind, first)."""

    def of_user(self, room_id: str, user_id: str) -> EventVisibilityQuerySet:
        """The ranges of one user in a room, without the room-wide ones."""
        return self.filter(room_id=room_id, user_id=user_id).order_by("first", "kind")

    def room_wide(self, room_id: str) -> EventVisibilityQuerySet:
        """The ranges that hold for everybody, or for every member."""
        return self.filter(room_id=room_id, user_id=None).order_by("first", "kind")

    def covering(self, room_id: str, position: int) -> EventVisibilityQuerySet:
        """The ranges of a room that a stream position lies in, the room-wide ones first."""
        not_before = Q(last__isnull=True) | Q(last__gte=position)
        found = self.filter(not_before, room_id=room_id, first__lte=position)
        return found.order_by(F("user_id").asc(nulls_first=True), "first", "kind")
