"""The read-only admin of rooms, events and their visibility.

Tables with a composite key, such as edges, are shown on the pages of the rows that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import CompositePrimaryKey
from django.db.models.functions import Lower
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from events.admin.event_page import event_page as context_of_event
from events.admin.event_search import event_search as context_of_search
from events.admin.pretty_json import pretty_json
from events.admin.room_list import HealthFilter, RoomPaginator, VersionFilter, by_exact_order, found_rooms
from events.admin.room_names import HEALTH, health_words, room_names
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
    RoomSummary,
    TimelineGap,
)
from streams.admin import FactAdmin
from streams.admin.base import ReadOnlyAdmin
from streams.conf import stream_settings
from streams.facts import Fact


class _PageAdmin(ReadOnlyAdmin):
    # Adds ``page_template`` to Django's page of one row, if the site's templates are installed.
    page_template = ""

    @property
    def change_form_template(self) -> Any:  # type: ignore[override]  # Django takes the first template that there is
        return [self.page_template, "admin/change_form.html"]

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        raise NotImplementedError

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **more: Any) -> Any:
        # Django has already checked that the user may view the row.
        if (row := more.get("obj")) is not None:
            context |= self.page_context(request, row)
            row.header_words = context.get("header_words", "")  # the theme's header shows the row itself
        return super().render_change_form(request, context, *args, **more)


@admin.register(Room)
class RoomAdmin(_PageAdmin):
    page_template = "events/room_page.html"
    list_display = ("called", "members", "stored_events", "last_activity", "version", "health")
    sortable_by = ("called", "members", "stored_events", "last_activity")
    list_display_links = ("called",)
    list_filter = (HealthFilter, VersionFilter)
    paginator = RoomPaginator
    search_fields = ("room_id",)
    search_help_text = "Part of a name, an alias or a room ID; or a member: @ann:example.org"

    def get_queryset(self, request: HttpRequest) -> Any:
        # Summaries for the list of rooms, ``Room`` for all other pages. Both have the room ID as primary key.
        match = request.resolver_match
        if match is None or not (match.url_name or "").endswith("_changelist"):
            return super().get_queryset(request)
        return RoomSummary.objects.using(stream_settings().database)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        return found_rooms(queryset, search_term), False

    def ready(self, rows: Iterable[Any]) -> list[Any]:
        # one query reads the rooms of all summaries
        found, using = list(rows), stream_settings().database
        ids = [row.room_id for row in found]
        rooms = {room.room_id: room for room in Room.objects.using(using).filter(room_id__in=ids)}
        names, health = room_names(ids, using), health_words(list(rooms.values()), using)
        for row in found:
            row.name_shown, row.health_word = names[row.room_id], health.get(row.room_id, "unknown")
            row.version_shown = rooms[row.room_id].room_version if row.room_id in rooms else "purged"
        return super().ready(found)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        base: Any = super().get_changelist(request, **kwargs)

        class RoomList(base):
            def get_ordering(self, request: HttpRequest, queryset: Any) -> Any:
                return by_exact_order(super().get_ordering(request, queryset))

            def _get_default_ordering(self) -> Any:
                return ["-active_on"]

        return RoomList

    @admin.display(description="Room", ordering=Lower("name"))
    def called(self, room: Any) -> SafeString:
        name = room.name_shown
        below = " ".join(part for part in (name.alias, str(room.room_id)) if part and part != name.text)
        return format_html(
            '<span style="overflow-wrap: anywhere">{}</span> <br><small style="overflow-wrap: anywhere; opacity: .75">{}</small>',
            name.text,
            below,
        )

    @admin.display(description="Members", ordering="joined")
    def members(self, room: Any) -> str:
        return f"{room.joined:,}"

    @admin.display(description="Events", ordering="size")
    def stored_events(self, room: Any) -> str:
        return f"{room.events:,}"

    @admin.display(description="Last activity (UTC)", ordering="active_on")
    def last_activity(self, room: Any) -> str:
        at = room.active_at
        return f"{at:%Y-%m-%d %H:%M:%S}" if at.timestamp() > 0 else "never"

    @admin.display(description="Version")
    def version(self, room: Any) -> str:
        return str(room.version_shown)

    @admin.display(description="Health")
    def health(self, room: Any) -> SafeString:
        return format_html('<span title="{}">{}</span>', HEALTH[room.health_word], room.health_word)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return room_page(row, request.GET.dict(), stream_settings().database)


@admin.register(Event)
class EventAdmin(_PageAdmin, FactAdmin):
    page_template = "events/event_page.html"

    @property
    def list_before_template(self) -> str | None:
        return "events/search_link.html" if apps.is_installed("replsite") else None

    def get_list_display(self, request: object) -> tuple[str, ...]:
        return (
            "stream_ordering", "event_id", "type", "state_key", "sender", "room_id", "topological_ordering", "outlier",
            "rejected_reason", "soft_failed", "received_at",
        )  # fmt: skip

    def get_search_fields(self, request: object) -> tuple[str, ...]:
        # each has an index
        return ("event_id__exact", "room_id__exact")

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return context_of_event(row, request.GET.dict(), stream_settings().database)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        search = path("search/", view(self.search_view), name="events_event_search")
        stored_json = path("<any_text:object_id>/json/", view(self.json_view), name="events_event_json")
        return [search, stored_json, *super().get_urls()]

    def search_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if not apps.is_installed("replsite"):
            raise Http404("The search needs the site's templates: install the app replsite.")
        context = {
            **self.admin_site.each_context(request),
            "title": "Search events",
            "opts": self.opts,
            **context_of_search(request.GET.dict(), stream_settings().database),
        }
        return TemplateResponse(request, "events/event_search.html", context)

    def json_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Serves the stored JSON of an event unchanged, with headers that keep browsers from rendering it as a page."""
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
    list_display = ("event_id", "room_version")
    ordering = ("event_id",)
    search_fields = ("event_id__exact",)
    readonly_fields = ("content",)

    @admin.display(description="JSON")
    def content(self, event: EventJson) -> SafeString:
        style = "white-space: pre-wrap; overflow-wrap: anywhere"
        return format_html('<pre style="{}">{}</pre>', style, pretty_json(event.json))


@admin.register(EventAuth)
class EventAuthAdmin(ReadOnlyAdmin):
    list_display = ("event_id", "auth_event_ids")
    ordering = ("event_id",)
    search_fields = ("event_id__exact",)


@admin.register(ForwardExtremity)
class ForwardExtremityAdmin(ReadOnlyAdmin):
    list_display = ("event_id", "room_id")
    ordering = ("event_id",)
    search_fields = ("event_id__exact", "room_id__exact")


@admin.register(BackwardExtremity)
class BackwardExtremityAdmin(ReadOnlyAdmin):
    list_display = ("room_id", "event_id")
    ordering = ("room_id", "event_id")
    search_fields = ("room_id__exact",)


@admin.register(TimelineGap)
class TimelineGapAdmin(ReadOnlyAdmin):
    list_display = ("room_id", "stream_ordering", "instance_name")
    ordering = ("room_id", "stream_ordering")
    search_fields = ("room_id__exact",)


@admin.register(CurrentState)
class CurrentStateAdmin(ReadOnlyAdmin):
    list_display = ("room_id", "type", "state_key", "event_id", "membership")
    ordering = ("room_id", "type", "state_key")
    search_fields = ("room_id__exact",)


@admin.register(CurrentStateDelta)
class CurrentStateDeltaAdmin(FactAdmin):
    """The admin of changes of rooms' current state, newest first."""


@admin.register(EventVisibility)
class EventVisibilityAdmin(ReadOnlyAdmin):
    list_display = ("room_id", "user_id", "kind", "first", "last")
    ordering = ("room_id", "user_id", "first")
    search_fields = ("room_id__exact", "user_id__exact")


@admin.register(ErasedUser)
class ErasedUserAdmin(ReadOnlyAdmin):
    list_display = ("user_id", "erased_at")
    ordering = ("user_id",)
    search_fields = ("user_id__exact",)


for _model in apps.get_app_config("events").get_models():
    if not admin.site.is_registered(_model) and not isinstance(_model._meta.pk, CompositePrimaryKey):
        admin.site.register(_model, FactAdmin if issubclass(_model, Fact) else ReadOnlyAdmin)
