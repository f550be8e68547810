"""The read-only admin of rooms, events and their visibility.

Tables with a composite key, such as edges, are shown on the pages of the rows that they belong to.
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
from events.admin.pretty_json import pretty_json
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
    """An admin that adds a template of its own, ``page_template``, to Django's page of one row.

    If the site's templates are not installed, Django's page alone is shown.
    """

    page_template = ""

    @property
    def change_form_template(self) -> Any:  # type: ignore[override]  # Django takes the first template that there is
        """The templates to try in this order: the page's own, then Django's."""
        return [self.page_template, "admin/change_form.html"]

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Returns the variables that ``page_template`` needs in addition to Django's."""
        raise NotImplementedError

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **more: Any) -> Any:
        """Renders the page with the variables of ``page_context``.

        Django has already checked that the user may view the row.
        """
        if (row := more.get("obj")) is not None:
            context |= self.page_context(request, row)
        return super().render_change_form(request, context, *args, **more)


@admin.register(Room)
class RoomAdmin(_PageAdmin):
    """Rooms with stored events: forward and backward extremities, members, current state, and the latest events as a graph."""

    page_template = "events/room_page.html"
    list_display = ("room_id", "room_version", "creator", "current_state_unresolved", "visibility_unresolved")
    ordering = ("room_id",)
    search_fields = ("room_id__exact",)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Returns the variables of ``events.admin.room_page``."""
        return room_page(row, request.GET.dict(), stream_settings().database)


@admin.register(Event)
class EventAdmin(_PageAdmin, FactAdmin):
    """Events, newest first. The page of an event shows its JSON, edges, state and visibility."""

    page_template = "events/event_page.html"

    def get_list_display(self, request: object) -> tuple[str, ...]:
        """Returns the columns that identify an event at a glance."""
        return (
            "stream_ordering", "event_id", "type", "state_key", "sender", "room_id", "topological_ordering", "outlier",
            "rejected_reason", "soft_failed", "received_at",
        )  # fmt: skip

    def get_search_fields(self, request: object) -> tuple[str, ...]:
        """Returns fields that are searched for exact values. Each has an index."""
        return ("event_id__exact", "room_id__exact")

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Returns the variables of ``events.admin.event_page``."""
        return context_of_event(row, request.GET.dict(), stream_settings().database)

    def get_urls(self) -> list[Any]:
        """Returns Django's URLs, and in front of them the URL of ``json_view``."""
        own = path("<path:object_id>/json/", self.admin_site.admin_view(self.json_view), name="events_event_json")
        return [own, *super().get_urls()]

    def json_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Serves the stored bytes unchanged, with headers that keep browsers from rendering them as a page.

        Raises ``PermissionDenied``, or ``Http404`` if the event or its JSON is not stored.
        """
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
        """Returns the stored bytes as indented JSON."""
        return _preformatted(pretty_json(event.json))


@admin.register(EventAuth)
class EventAuthAdmin(ReadOnlyAdmin):
    """Auth events of state events."""

    list_display = ("event_id", "auth_event_ids")
    ordering = ("event_id",)
    search_fields = ("event_id__exact",)


@admin.register(ForwardExtremity)
class ForwardExtremityAdmin(ReadOnlyAdmin):
    """Forward extremities of rooms."""

    list_display = ("event_id", "room_id")
    ordering = ("event_id",)
    search_fields = ("event_id__exact", "room_id__exact")


@admin.register(BackwardExtremity)
class BackwardExtremityAdmin(ReadOnlyAdmin):
    """Backward extremities of rooms."""

    list_display = ("room_id", "event_id")
    ordering = ("room_id", "event_id")
    search_fields = ("room_id__exact",)


@admin.register(TimelineGap)
class TimelineGapAdmin(ReadOnlyAdmin):
    """Gaps in timelines. They stay listed after the missing events have arrived."""

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
    """Visibility ranges of rooms."""

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
