"""Tables of the app ``events``: rooms, events, their exact JSON, the graph, current state, visibility.

Every text column holds a Matrix identifier of at most 255 bytes, without NUL, ordered by code point.
``events.format.parsing`` refuses events with other identifiers. Content is in ``EventJson`` only, byte for byte. Stream
orderings of live events are positive. Stream orderings of backfilled events are negative. Other services may import
these models, and should only read them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from events.declarations import BACKFILL, EVENTS
from state.fields import IdentifierField
from streams.facts import Fact, FactQuerySet
from streams.holds.constraint import StreamHolds
from streams.models.read_only import ReadOnlyQuerySet
from streams.registry import bind

__all__ = [
    "BackwardExtremity",
    "CurrentState",
    "CurrentStateDelta",
    "ErasedUser",
    "Event",
    "EventAuth",
    "EventEdge",
    "EventJson",
    "EventVisibility",
    "ForgottenRoom",
    "ForwardExtremity",
    "IgnoredUser",
    "PurgedRoom",
    "Room",
    "RoomAccess",
    "RoomSummary",
    "TimelineGap",
    "VisibleEvent",
]
_MEMBER = "m.room.member"


class RoomQuerySet(ReadOnlyQuerySet["Room"]):
    """A query set of rooms. An index has the room ID."""

    def of_user(self, user_id: str, membership: str = "join") -> RoomQuerySet:
        """Returns the rooms in which the user has that membership in the current state."""
        return self.filter(room_id__in=CurrentState.read.rooms_of(user_id, membership).values("room_id"))

    def with_gaps(self) -> RoomQuerySet:
        """Returns rooms with backward extremities: some of their events refer to events that are not stored."""
        return self.filter(room_id__in=BackwardExtremity.objects.values("room_id"))


class Room(models.Model):
    """A room with stored events.

    ``current_state_unresolved`` is true if the state at a forward extremity is not known, because events below it are
    missing. Then the room has no rows in ``CurrentState``. If ``visibility_unresolved`` is true, the room has no rows
    in ``EventVisibility``.
    """

    room_id = IdentifierField(primary_key=True)
    room_version = models.TextField(help_text='"1" to "12"')
    creator = IdentifierField(null=True, help_text="sender of the create event; null while that is not here")
    create_event_id = IdentifierField(null=True)
    current_state_unresolved = models.BooleanField(db_default=False)
    visibility_unresolved = models.BooleanField(db_default=False)
    content_generation = models.BigIntegerField(
        db_default=0, help_text="raised when stored JSON of the room was rewritten, so that nobody uses what they kept"
    )

    objects = models.Manager()
    read = RoomQuerySet.as_manager()

    class Meta:
        db_table = "events_room"
        indexes: ClassVar = [
            models.Index(
                fields=["room_id"],
                name="events_room_unknown",
                condition=models.Q(current_state_unresolved=True) | models.Q(visibility_unresolved=True),
            )
        ]

    def __str__(self) -> str:
        return str(self.room_id)  # a page's text escapes itself


class EventQuerySet(ReadOnlyQuerySet["Event"]):
    """A query set of events.

    Indexes have stream ordering, event ID, (room, topological, stream), (room, stream), state group and redacts.
    """

    def in_room(self, room_id: str) -> EventQuerySet:
        """Returns all stored events of a room, with any verdict."""
        return self.filter(room_id=room_id)

    def accepted(self) -> EventQuerySet:
        """Returns events that clients may be shown: neither outliers nor rejected nor soft-failed."""
        return self.filter(outlier=False, soft_failed=False, rejected_reason=None)

    def newest_first(self) -> EventQuerySet:
        """Orders events by (topological, stream), descending, as a room is paged backwards."""
        return self.order_by("-topological_ordering", "-stream_ordering")

    def state_events(self, *types: str) -> EventQuerySet:
        """Returns state events, only of ``types`` if any are given. Combine it with a room: no index has the type."""
        found = self.filter(state_key__isnull=False)
        return found.filter(type__in=types) if types else found

    def at(self, event_ids: Collection[str]) -> EventQuerySet:
        """Returns the events with these IDs, as far as they are stored."""
        return self.filter(event_id__in=list(event_ids))

    def after(self, position: int, upto: int | None = None) -> EventQuerySet:
        """Returns events with stream orderings above ``position``, up to and including ``upto``, ascending."""
        found = self.filter(stream_ordering__gt=position)
        return (found if upto is None else found.filter(stream_ordering__lte=upto)).order_by("stream_ordering")

    def prev_events_of(self, event_id: str) -> EventQuerySet:
        """Returns the stored prev events of an event."""
        edges = EventEdge.objects.filter(event_id=event_id)
        return self.filter(event_id__in=edges.values("prev_event_id"))

    def next_events_of(self, event_id: str) -> EventQuerySet:
        """Returns the events that name an event among their prev events."""
        edges = EventEdge.objects.filter(prev_event_id=event_id)
        return self.filter(event_id__in=edges.values("event_id"))

    def extremities_of(self, room_id: str) -> EventQuerySet:
        """Returns the forward extremities of a room."""
        return self.filter(event_id__in=ForwardExtremity.objects.filter(room_id=room_id).values("event_id"))

    def with_state_of(self, state_group: int) -> EventQuerySet:
        """Returns the events with that state group, by stream ordering."""
        return self.filter(state_group=state_group).order_by("stream_ordering")


@bind(BACKFILL)
@bind(EVENTS)
class Event(Fact):
    """One stored event. Its JSON is in ``EventJson``.

    ``stream_ordering`` is the position at which it arrived; it is negative for backfilled events.
    ``topological_ordering`` is the depth as its sender claims it. A room is paged by (topological, stream). An event is
    shown to clients if it is no outlier, not rejected, not soft-failed, and visible to the user. If ``redacted_by`` is
    set, the pruned form is served.
    """

    id_field: ClassVar[str] = "stream_ordering"
    stream_id = None  # type: ignore[assignment]  # Django's way to drop a field of the abstract base

    stream_ordering = models.BigIntegerField(primary_key=True)
    event_id = IdentifierField(unique=True)
    room_id = IdentifierField()
    type = IdentifierField()
    state_key = IdentifierField(null=True, help_text="null: not a state event")
    sender = IdentifierField()
    topological_ordering = models.BigIntegerField(help_text="depth as claimed by the sender")
    origin_server_ts = models.BigIntegerField(help_text="milliseconds since the epoch, as claimed by the sender")
    membership = IdentifierField(null=True, help_text="content.membership of an m.room.member event")
    redacts = IdentifierField(null=True, help_text="event that this m.room.redaction is about")
    relates_to = IdentifierField(null=True, help_text="target of content.m.relates_to")
    outlier = models.BooleanField(db_default=False, help_text="known by content only: no place in the graph")
    rejected_reason = models.TextField(null=True, help_text="why the auth rules refused it; null: accepted")
    soft_failed = models.BooleanField(db_default=False, help_text="fails against the room's state on arrival")
    redacted_by = IdentifierField(null=True, help_text="redaction that applies to this event")
    state_unresolved = models.BooleanField(db_default=False, help_text="its state needs resolution and is not known")
    censored_at = models.DateTimeField(
        null=True, help_text="when its stored JSON was replaced by the pruned form, after a redaction"
    )
    state_group = models.BigIntegerField(
        null=True, help_text="the state after it (rejected: before it); null: an outlier, or state_unresolved"
    )

    objects = FactQuerySet.as_manager()  # type: ignore
    read = EventQuerySet.as_manager()

    class Meta:
        db_table = "events_event"
        indexes: ClassVar = [
            models.Index(fields=["room_id", "topological_ordering", "stream_ordering"], name="events_event_timeline"),
            models.Index(fields=["room_id", "stream_ordering"], name="events_event_room_stream"),
            models.Index(fields=["redacts"], name="events_event_redacts", condition=models.Q(redacts__isnull=False)),
            models.Index(
                fields=["room_id", "stream_ordering"],
                name="events_event_uncensored",
                condition=models.Q(redacted_by__isnull=False, censored_at__isnull=True),
            ),
            models.Index(fields=["room_id"], name="events_event_unresolved", condition=models.Q(state_unresolved=True)),
            models.Index(
                fields=["state_key"],
                name="events_event_outlier_member",
                condition=models.Q(type="m.room.member", outlier=True),
            ),
            models.Index(
                fields=["state_key", "room_id"], name="events_event_member", condition=models.Q(type="m.room.member")
            ),
            models.Index(
                fields=["state_group"], name="events_event_state_group", condition=models.Q(state_group__isnull=False)
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=~models.Q(stream_ordering=0), name="events_event_ordering_not_zero"),
            StreamHolds(
                stream=EVENTS.name, sequence=EVENTS.sequence, id_field="stream_ordering", shared=True, fixed=False
            ),
            StreamHolds(
                stream=BACKFILL.name,
                sequence=BACKFILL.sequence,
                id_field="stream_ordering",
                backward=True,
                shared=True,
                fixed=False,
            ),
        ]

    def __str__(self) -> str:
        return str(self.event_id)  # a page's text escapes itself


class EventJson(models.Model):
    """The exact bytes of an event. The JSON may contain an escaped NUL, so the column is bytea, never jsonb."""

    event_id = IdentifierField(primary_key=True)
    room_version = models.TextField(help_text="tells the event's format")
    json = models.BinaryField(help_text="UTF-8 JSON text")

    class Meta:
        db_table = "events_eventjson"
        verbose_name = "event JSON"
        verbose_name_plural = "event JSON"

    def __str__(self) -> str:
        return str(self.event_id)  # a page's text escapes itself


class EventEdge(models.Model):
    """An edge of the graph: the event ``event_id`` names ``prev_event_id`` as a prev event.

    The prev event need not be stored. Outliers have no edges.
    """

    pk = models.CompositePrimaryKey("event_id", "prev_event_id")
    event_id = IdentifierField()
    prev_event_id = IdentifierField()

    class Meta:
        db_table = "events_eventedge"
        indexes: ClassVar = [models.Index(fields=["prev_event_id"], name="events_eventedge_prev")]

    def __str__(self) -> str:
        return f"{self.event_id} -> {self.prev_event_id}"


class EventAuth(models.Model):
    """The auth events of a *state* event, in the order in which the event lists them.

    Auth chains lead through state events only. In room version 12 the create event is implied and not listed. State
    resolution uses the index to find the events that name an event (``events.persist.naming_sql``).
    """

    event_id = IdentifierField(primary_key=True)
    auth_event_ids = ArrayField(IdentifierField())

    class Meta:
        db_table = "events_eventauth"
        verbose_name_plural = "auth events"
        indexes: ClassVar = [GinIndex(fields=["auth_event_ids"], name="events_eventauth_named", fastupdate=False)]

    def __str__(self) -> str:
        return str(self.event_id)  # a page's text escapes itself


class ForwardExtremity(models.Model):
    """A forward extremity of a room: an accepted event that no accepted event refers to."""

    event_id = IdentifierField(primary_key=True)
    room_id = IdentifierField()

    class Meta:
        db_table = "events_forwardextremity"
        verbose_name_plural = "forward extremities"
        indexes: ClassVar = [models.Index(fields=["room_id"], name="events_forwardextremity_room")]

    def __str__(self) -> str:
        return str(self.event_id)  # a page's text escapes itself


class BackwardExtremity(models.Model):
    """A backward extremity of a room: an event that a stored event refers to.

    The missing event itself is not stored, or is stored only as an outlier.
    """

    room_id = IdentifierField()
    event_id = IdentifierField()

    class Meta:
        db_table = "events_backwardextremity"
        verbose_name_plural = "backward extremities"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["room_id", "event_id"], name="events_backwardextremity_event"),
        ]

    def __str__(self) -> str:
        return str(self.event_id)  # a page's text escapes itself


class CurrentStateQuerySet(ReadOnlyQuerySet["CurrentState"]):
    """A query set of entries of rooms' current state.

    Indexes have (room, type, state key), and for members (user, membership, room).
    """

    def in_room(self, room_id: str, *types: str) -> CurrentStateQuerySet:
        """Returns the current state of a room, only of ``types`` if any are given, by type and state key."""
        found = self.filter(room_id=room_id, **({"type__in": types} if types else {}))
        return found.order_by("type", "state_key")

    def members(self, room_id: str, membership: str = "join") -> CurrentStateQuerySet:
        """Returns the entries of the users with that membership in a room. ``state_key`` is the user ID."""
        return self.filter(room_id=room_id, type=_MEMBER, membership=membership).order_by("state_key")

    def rooms_of(self, user_id: str, membership: str = "join") -> CurrentStateQuerySet:
        """Returns the user's entries with that membership, one for each room, by room ID."""
        return self.filter(type=_MEMBER, state_key=user_id, membership=membership).order_by("room_id")

    def as_state(self, room_id: str) -> dict[tuple[str, str], str]:
        """Returns the current state of a room as ``(type, state_key) -> event_id``."""
        rows = self.filter(room_id=room_id).values_list("type", "state_key", "event_id")
        return {(event_type, state_key): event_id for event_type, state_key, event_id in rows}


class CurrentState(models.Model):
    """One entry of a room's current state, which is the state at its forward extremities.

    ``membership`` is set for m.room.member entries, whose ``state_key`` is the user. An index over ``state_key`` and
    ``membership`` finds a user's rooms.
    """

    room_id = IdentifierField()
    type = IdentifierField()
    state_key = IdentifierField()
    event_id = IdentifierField()
    membership = IdentifierField(null=True)

    objects = models.Manager()
    read = CurrentStateQuerySet.as_manager()

    class Meta:
        db_table = "events_currentstate"
        verbose_name_plural = "current state"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["room_id", "type", "state_key"], name="events_currentstate_key"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["state_key", "membership", "room_id"],
                name="events_currentstate_user",
                condition=models.Q(type="m.room.member"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.room_id} {self.type} {self.state_key!r}"


@bind(EVENTS)
class CurrentStateDelta(Fact):
    """A fact of the stream ``events``: an entry of a room's current state changed with the event of this position.

    ``event_id`` is null if the entry was removed. ``prev_event_id`` is null if the current state had no such entry
    before.
    """

    id_field: ClassVar[str] = "stream_ordering"
    stream_id = None  # type: ignore[assignment]  # Django's way to drop a field of the abstract base

    stream_ordering = models.BigIntegerField(db_index=True)
    room_id = IdentifierField()
    type = IdentifierField()
    state_key = IdentifierField()
    event_id = IdentifierField(null=True)
    prev_event_id = IdentifierField(null=True)

    class Meta:
        db_table = "events_currentstatedelta"
        indexes: ClassVar = [
            models.Index(fields=["room_id", "stream_ordering"], name="events_currentstatedelta_room"),
            models.Index(
                fields=["state_key", "stream_ordering"],
                name="events_currentstatedelta_user",
                condition=models.Q(type="m.room.member"),
            ),
        ]
        constraints: ClassVar = [
            StreamHolds(
                stream=EVENTS.name,
                sequence=EVENTS.sequence,
                id_field="stream_ordering",
                fixed=False,
                name="events_currentstatedelta_holds",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.stream_ordering} {self.room_id} {self.type} {self.state_key!r}"


class ErasedUser(models.Model):
    """A user who asked for erasure. Their events are pruned for every user who was not joined at the event."""

    user_id = IdentifierField(primary_key=True)
    erased_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "events_eraseduser"

    def __str__(self) -> str:
        return str(self.user_id)  # a page's text escapes itself


class EventVisibilityQuerySet(ReadOnlyQuerySet["EventVisibility"]):
    """A query set of visibility ranges. Indexes have (room, user, kind, first) and (user, room, kind, first)."""

    def of_user(self, room_id: str, user_id: str) -> EventVisibilityQuerySet:
        """Returns the ranges of one user in a room, by first position. Room-wide ranges are left out."""
        return self.filter(room_id=room_id, user_id=user_id).order_by("first", "kind")

    def room_wide(self, room_id: str) -> EventVisibilityQuerySet:
        """Returns the room-wide ranges, which apply to everyone or to all members, by first position."""
        return self.filter(room_id=room_id, user_id=None).order_by("first", "kind")

    def covering(self, room_id: str, position: int) -> EventVisibilityQuerySet:
        """Returns the ranges of a room that include a stream position, room-wide ranges first."""
        not_before = Q(last__isnull=True) | Q(last__gte=position)
        found = self.filter(not_before, room_id=room_id, first__lte=position)
        return found.order_by(F("user_id").asc(nulls_first=True), "first", "kind")


class EventVisibility(models.Model):
    """A range of stream positions of a room whose events a user, or everyone, may see. Both ends are included.

    ``last`` is null while the range is open. User U sees an event at position p if p lies in a range of U (``user_id =
    U``), or in a room-wide range (``user_id`` null) that admits U: ``world`` admits everyone, ``shared`` everyone with
    a membership record.

    The kinds ``shown`` and ``hidden`` are rows for single events (``first = last``). These rows overrule the user's own
    ranges, but not room-wide ranges. ``world_before`` and ``shared_before`` mark an event that changes the room to a
    less open setting. This event is as visible as the part of the history that it ends, unless its sender is erased.
    ``withheld`` marks an event that nobody sees. ``cut`` ends a user's view: positions above its ``first`` are hidden.
    While a range ``peekable`` is open, the current state lets everyone read the room.

    Outliers, rejected and soft-failed events are never shown, whatever the ranges are.
    ``events.visibility.predicate_sql`` has the SQL condition that applies all these rules.
    """

    class Kind(models.TextChoices):
        """The kinds of ranges: the reasons for which they show or hide events."""

        WORLD = "world", "world readable"
        SHARED = "shared", "shared with members"
        JOINED = "joined", "the user is joined"
        INVITED = "invited", "invited, and invited members may read"
        CUT = "cut", "the user has left or is banned"
        SHOWN = "shown", "single event, shown"
        HIDDEN = "hidden", "single event, hidden"
        WORLD_BEFORE = "world_before", "single event that ends a world-readable part"
        SHARED_BEFORE = "shared_before", "single event that ends a shared part"
        WITHHELD = "withheld", "single event that nobody is shown"
        PEEKABLE = "peekable", "anybody may read the room"

    room_id = IdentifierField()
    user_id = IdentifierField(null=True, help_text="null: room-wide")
    kind = models.TextField(choices=Kind.choices)
    first = models.BigIntegerField(help_text="stream position of the first event")
    last = models.BigIntegerField(null=True, help_text="stream position of the last event; null: still open")

    objects = models.Manager()
    read = EventVisibilityQuerySet.as_manager()

    class Meta:
        db_table = "events_eventvisibility"
        verbose_name = "range of visibility"
        verbose_name_plural = "ranges of visibility"
        indexes: ClassVar = [
            models.Index(fields=["room_id", "user_id", "kind", "first"], name="events_eventvisibility_range"),
            models.Index(
                fields=["room_id", "first"],
                name="events_eventvisibility_wide",
                condition=models.Q(user_id__isnull=True, kind__in=("shared", "world")),
            ),
            models.Index(
                fields=["room_id", "user_id", "first"],
                name="events_eventvisibility_own",
                condition=models.Q(kind__in=("joined", "invited")),
            ),
            models.Index(fields=["user_id", "room_id", "kind", "first"], name="events_eventvisibility_user"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(last__isnull=True) | models.Q(last__gte=models.F("first")),
                name="events_eventvisibility_ascending",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.room_id} {self.user_id or 'everyone'} {self.kind} {self.first}..{self.last or ''}"


from events.models.gaps import TimelineGap  # noqa: E402 - after the tables
from events.models.purged_rooms import PurgedRoom  # noqa: E402 - after the tables
from events.models.summaries import RoomSummary  # noqa: E402 - after the tables
from events.models.visibility import ForgottenRoom, IgnoredUser, RoomAccess, VisibleEvent  # noqa: E402 - after the tables
