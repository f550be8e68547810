"""Rooms, events and who may see them in the admin, read-only. Edges have a composite key, so they are shown with their event."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from events.json_for_people import json_for_people
from events.models import (
    BackwardExtremity,
    CurrentState,
    CurrentStateDelta,
    ErasedUser,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
    TimelineGap,
)
from streams.admin import FactAdmin
from streams.read_only_admin import ReadOnlyAdmin

__all__ = ["EventAdmin", "EventJsonAdmin", "RoomAdmin"]

_NOT_HERE = "not here"


def _preformatted(text: str) -> SafeString:
    return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', text)


def _lines(values: object) -> SafeString:
    return format_html_join("", "<div>{}</div>", ((value,) for value in values)) or SafeString("-")  # type: ignore[attr-defined]


@admin.register(Room)
class RoomAdmin(ReadOnlyAdmin):
    """Rooms that we hold events of."""

    list_display = ("room_id", "room_version", "creator", "current_state_unresolved", "visibility_unresolved")
    ordering = ("room_id",)
    search_fields = ("room_id__exact",)


@admin.register(Event)
class EventAdmin(FactAdmin):
    """Events, newest first, with their JSON, edges and state group."""

    readonly_fields = ("json", "previous_events")

    def get_list_display(self, request: object) -> tuple[str, ...]:
        """What tells an event at a glance."""
        return (
            "stream_ordering", "event_id", "type", "state_key", "sender", "room_id", "topological_ordering", "outlier",
            "rejected_reason", "soft_failed", "received_at",
        )  # fmt: skip

    def get_search_fields(self, request: object) -> tuple[str, ...]:
        """Exact ones, each with an index."""
        return ("event_id__exact", "room_id__exact")

    @admin.display(description="JSON")
    def json(self, event: Event) -> SafeString:
        """The stored bytes, indented."""
        stored = EventJson.objects.filter(event_id=event.event_id).values_list("json", flat=True).first()
        return _preformatted(_NOT_HERE if stored is None else json_for_people(stored))

    @admin.display(description="previous events")
    def previous_events(self, event: Event) -> SafeString:
        """Its edges to earlier events."""
        edges = EventEdge.objects.filter(event_id=event.event_id).order_by("prev_event_id")
        return _lines(edges.values_list("prev_event_id", flat=True)[:200])


@admin.register(EventJson)
class EventJsonAdmin(ReadOnlyAdmin):
    """The exact bytes of events."""

    list_display = ("event_id", "room_version")
    ordering = ("event_id",)
    search_fields = ("event_id__exact",)
    readonly_fields = ("content",)

    @admin.display(description="JSON")
    def content(self, event: EventJson) -> SafeString:
        """The stored bytes, indented."""
        return _preformatted(json_for_people(event.json))


@admin.register(EventAuth)
class EventAuthAdmin(ReadOnlyAdmin):
    """Auth events of state events."""

    list_display = ("event_id", "auth_event_ids")
    ordering = ("event_id",)
    search_fields = ("event_id__exact",)


@admin.register(ForwardExtremity)
class ForwardExtremityAdmin(ReadOnlyAdmin):
    """Leaves of rooms."""

    list_display = ("event_id", "room_id")
    ordering = ("event_id",)
    search_fields = ("event_id__exact", "room_id__exact")


@admin.register(BackwardExtremity)
class BackwardExtremityAdmin(ReadOnlyAdmin):
    """Gaps of rooms."""

    list_display = ("room_id", "event_id")
    ordering = ("room_id", "event_id")
    search_fields = ("room_id__exact",)


@admin.register(TimelineGap)
class TimelineGapAdmin(ReadOnlyAdmin):
    """Where timelines have holes."""

    list_display = ("room_id", "stream_ordering", "instance_name")
    ordering = ("room_id", "stream_ordering")
    search_fields = ("room_id__exact",)


@admin.register(CurrentState)
class CurrentStateAdmin(ReadOnlyAdmin):
    """The current state of rooms."""

    list_display = ("room_id", "type", "state_key", "event_id", "membership")
    ordering = ("room_id", "type", "state_key")
    search_fields = ("room_id__exact",)


@admin.register(CurrentStateDelta)
class CurrentStateDeltaAdmin(FactAdmin):
    """Changes of rooms' current state, newest first."""


@admin.register(EventVisibility)
class EventVisibilityAdmin(ReadOnlyAdmin):
    """Who may see which stretch of a room."""

    list_display = ("room_id", "user_id", "kind", "first", "last")
    ordering = ("room_id", "user_id", "first")
    search_fields = ("room_id__exact", "user_id__exact")


@admin.register(ErasedUser)
class ErasedUserAdmin(ReadOnlyAdmin):
    """Users who asked for erasure."""

    list_display = ("user_id", "erased_at")
    ordering = ("user_id",)
    search_fields = ("user_id__exact",)
