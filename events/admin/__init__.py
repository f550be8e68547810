"""Rooms, events and who may see them in the admin, read-only.

Tables with a composite key (edges, …) are shown with what they belong to.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import CompositePrimaryKey
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from events.admin.event_page import event_page as context_of_event
from events.admin.pretty_json import json_for_people
from events.admin.room_page import room_page
from events.models import (
    BackwardExtremity,
    CurrentState,
    CurrentStateDelta,
    ErasedUser,
    Event,
    EventAuth,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
    TimelineGap,
)
from streams.admin import FactAdmin
from streams.admin.base import ReadOnlyAdmin
from streams.conf import stream_settings
from streams.facts import Fact

__all__ = ["EventAdmin", "EventJsonAdmin", "RoomAdmin"]


def _preformatted(text: str) -> SafeString:
    return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', text)


class _PageAdmin(ReadOnlyAdmin):
    """An admin with a page of its own around Django's list of columns; Django's alone where the site's templates are not."""

    page_template = ""

    @property
    def change_form_template(self) -> Any:  # type: ignore[override]  # Django takes the first template that there is
        """The page, or Django's."""
        return [self.page_template, "admin/change_form.html"]

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What the page shows besides the columns."""
        raise NotImplementedError

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **more: Any) -> Any:
        """Django's page with ours in it; the permission to view was checked before."""
        if (row := more.get("obj")) is not None:
            context |= self.page_context(request, row)
        return super().render_change_form(request, context, *args, **more)


@admin.register(Room)
class RoomAdmin(_PageAdmin):
    """Rooms that we hold events of: leaves, gaps, members, current state, and the last events as a graph."""

    page_template = "events/room_page.html"
    list_display = ("room_id", "room_version", "creator", "current_state_unresolved", "visibility_unresolved")
    ordering = ("room_id",)
    search_fields = ("room_id__exact",)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """See ``events.admin.room_page``."""
        return room_page(row, request.GET.dict(), stream_settings().database)


@admin.register(Event)
class EventAdmin(_PageAdmin, FactAdmin):
    """Events, newest first; each with its JSON, edges, state and who may see it."""

    page_template = "events/event_page.html"

    def get_list_display(self, request: object) -> tuple[str, ...]:
        """What tells an event at a glance."""
        return (
            "stream_ordering", "event_id", "type", "state_key", "sender", "room_id", "topological_ordering", "outlier",
            "rejected_reason", "soft_failed", "received_at",
        )  # fmt: skip

    def get_search_fields(self, request: object) -> tuple[str, ...]:
        """Exact ones, each with an index."""
        return ("event_id__exact", "room_id__exact")

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """See ``events.admin.event_page``."""
        return context_of_event(row, request.GET.dict(), stream_settings().database)

    def get_urls(self) -> list[Any]:
        """The exact bytes beside the pages."""
        own = path("<path:object_id>/json/", self.admin_site.admin_view(self.json_view), name="events_event_json")
        return [own, *super().get_urls()]

    def json_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The stored bytes as they are; browsers are told not to take them for a page."""
        event = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, event):
            raise PermissionDenied
        stored = EventJson.objects.filter(event_id=event.event_id).first() if event is not None else None
        if stored is None:
            raise Http404("There is no such event, or its JSON is not here.")
        headers = {"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff"}
        return HttpResponse(bytes(stored.json), content_type="application/json", headers=headers)


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
    """Where timelines have gaps, or had them when the events above came."""

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


for _model in apps.get_app_config("events").get_models():
    if not admin.site.is_registered(_model) and not isinstance(_model._meta.pk, CompositePrimaryKey):
        admin.site.register(_model, FactAdmin if issubclass(_model, Fact) else ReadOnlyAdmin)
